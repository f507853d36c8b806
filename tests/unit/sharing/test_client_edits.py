"""What an MPS client's container gets."""

from pathlib import Path

from dra_driver.cdi.model import Mount
from dra_driver.mps.files import DomainPaths
from dra_driver.sharing.mps import client_edits

PATHS = DomainPaths(folder=Path("/plugins/mps/domains/claim"))
OPTIONS = ("rw", "nosuid", "nodev", "bind")


def test_a_client_finds_its_daemon_and_shares_memory_with_it() -> None:
    edits = client_edits(PATHS)
    assert edits.env == ("CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",)
    assert edits.mounts == (
        Mount(
            host_path="/plugins/mps/domains/claim/shm", container_path="/dev/shm", options=OPTIONS
        ),
        Mount(
            host_path="/plugins/mps/domains/claim/run/pipe",
            container_path="/tmp/nvidia-mps",
            options=("ro", "nosuid", "nodev", "noexec", "bind"),
        ),
    )


def test_a_clients_percentage_goes_into_its_environment() -> None:
    edits = client_edits(PATHS, active_thread_percentage=20)
    assert edits.env[1:] == ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20",)


def test_two_devices_of_one_domain_add_their_mounts_once() -> None:
    edits = client_edits(PATHS, active_thread_percentage=20)
    both = edits + client_edits(PATHS, active_thread_percentage=20)
    assert both == edits


def test_a_clients_memory_goes_into_its_environment_by_gpu() -> None:
    edits = client_edits(
        PATHS, active_thread_percentage=20, pinned_memory_mib={"GPU-2": 512, "GPU-1": 10240}
    )
    assert edits.env[1:] == (
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=GPU-1=10240M,GPU-2=512M",
    )


def test_without_memory_limits_the_daemons_are_left_alone() -> None:
    assert client_edits(PATHS, pinned_memory_mib={}) == client_edits(PATHS)
