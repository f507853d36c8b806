"""Tells whether NVIDIA's own driver left a checkpoint: only then is the rest loaded."""

import os
from pathlib import Path

FILE = "checkpoint.json"
"""The file's name in the directory that both drivers share."""


def is_there(directory: Path) -> bool:
    """Tell whether there is a checkpoint, even if it is not a regular file."""
    return os.path.lexists(directory / FILE)
