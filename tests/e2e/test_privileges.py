"""Why driver and supervisor are privileged: no list of capabilities lets a container open a GPU.

What Kubernetes gives to a privileged container beside all capabilities is a device cgroup that
allows every device. Containers are runc's, with a GPU's device node and no driver behind it.
"""

from pathlib import Path

import pytest
from testbed.containers import BARE_ENV, Container, Containers

pytestmark = pytest.mark.e2e

# fmt: off
NAMES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID",
    "SETUID", "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST",
    "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO",
    "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE",
    "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM",
    "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)
# fmt: on
"""All capabilities by number, linux/capability.h."""

OPEN_A_GPU = "mknod /dev/nvidia0 c 195 0 && echo made && (: </dev/nvidia0) 2>&1; echo looked"
REFUSED = "Operation not permitted"


def every_capability() -> list[str]:
    """All that this machine can give."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:"))
    return [f"CAP_{name}" for number, name in enumerate(NAMES) if mask >> number & 1]


@pytest.mark.parametrize("is_privileged", [False, True])
def test_with_every_capability_only_a_privileged_container_opens_a_gpu(
    containers: Containers, tmp_path: Path, is_privileged: bool
) -> None:
    assert "CAP_MKNOD" in every_capability()
    container = Container(
        command=["bash", "-c", OPEN_A_GPU],
        env=BARE_ENV,
        capabilities=every_capability(),
        every_device=is_privileged,
    )
    said = containers.run(container, specs=tmp_path)
    assert said.startswith("made\n")
    assert said.endswith("looked\n")
    assert (REFUSED in said) is not is_privileged
