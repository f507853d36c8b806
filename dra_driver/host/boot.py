"""Which boot this is: at a reboot, hardware forgets what was set."""

from pathlib import Path

from dra_driver.errors import SetupError


def read_boot_id(proc_root: Path) -> str:
    """Return the id of this boot, new after each reboot (random(4)). Raises SetupError."""
    path = proc_root / "sys/kernel/random/boot_id"
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        raise SetupError(
            f"{path} cannot be read: {error.strerror}; check that procfs is mounted at --proc-root"
        ) from error
