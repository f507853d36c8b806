"""What an MPS client's container gets."""

from pathlib import Path

import make
from dra_driver.cdi.model import Mount
from dra_driver.mps.files import DomainPaths
from dra_driver.sharing.mps import client_edits

PATHS = DomainPaths(folder=Path("/plugins/mps/domains/claim"))
GPU = make.device(make.gpu(0))
OPTIONS = ("rw", "nosuid", "nodev", "bind")


def test_a_client_finds_its_daemon_and_shares_memory_with_it() -> None:
    edits = client_edits(PATHS, GPU, percentage=None, memory_mib=None)
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


def test_a_clients_limits_go_into_its_environment() -> None:
    edits = client_edits(PATHS, GPU, percentage=20, memory_mib=512)
    assert edits.env[1:] == (
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20",
        f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={GPU.uuid}=512M",
    )


def test_two_devices_of_one_domain_add_their_mounts_once() -> None:
    edits = client_edits(PATHS, GPU, percentage=20, memory_mib=None)
    assert edits + edits == edits
