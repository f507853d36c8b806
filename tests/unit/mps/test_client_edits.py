"""What an MPS client's container gets."""

from pathlib import Path

from dra_driver.cdi.model import Mount
from dra_driver.mps.client_edits import ClientLimits, client_edits
from dra_driver.mps.files import DomainPaths

PATHS = DomainPaths(folder=Path("/plugins/mps/domains/claim"))
OPTIONS = ("rw", "nosuid", "nodev", "bind")


def test_a_client_finds_its_daemon_and_shares_memory_with_it() -> None:
    edits = client_edits(PATHS, ClientLimits())
    assert edits.env == ("CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",)
    assert edits.mounts == (
        Mount(
            host_path="/plugins/mps/domains/claim/shm", container_path="/dev/shm", options=OPTIONS
        ),
        Mount(
            host_path="/plugins/mps/domains/claim/pipe",
            container_path="/tmp/nvidia-mps",
            options=OPTIONS,
        ),
    )


def test_limits_of_a_client_go_into_its_environment() -> None:
    limits = ClientLimits(
        active_thread_percentage=20, pinned_memory_mib={"GPU-1": 1024, "GPU-2": 953}
    )
    assert client_edits(PATHS, limits).env[1:] == (
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=GPU-1=1024M,GPU-2=953M",
    )


def test_two_devices_of_one_domain_add_their_mounts_once() -> None:
    edits = client_edits(PATHS, ClientLimits(active_thread_percentage=20))
    both = edits + client_edits(PATHS, ClientLimits(active_thread_percentage=20))
    assert both == edits
