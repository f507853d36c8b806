"""How many inotify instances root may have on this machine.

A cluster needs about 25. The kernel's usual 128 are too few for the five clusters that the
end-to-end tests have at the same time, and then a kubelet ends at its start.
"""

from pathlib import Path

LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
ENOUGH = 1024


def ensure_instances(limit: Path = LIMIT) -> int | None:
    """Raise the limit if it is too low, until the next boot; return what it was, None if unchanged.

    Where it may not be written, `processes.REMEDIES` says what to do once it is used up.
    """
    try:
        was = int(limit.read_text())
        if was >= ENOUGH:
            return None
        limit.write_text(f"{ENOUGH}\n")
    except OSError:
        return None
    return was
