"""The files of this repository."""

import subprocess
from pathlib import Path


def tracked(repository: Path, *patterns: str) -> list[str]:
    """Return the existing files that git knows or would add, sorted; all, or some."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--"]
    listed = subprocess.run(
        [*command, *patterns], cwd=repository, capture_output=True, text=True, check=True
    )
    names = filter(None, listed.stdout.split("\0"))
    return sorted({name for name in names if (repository / name).is_file()})
