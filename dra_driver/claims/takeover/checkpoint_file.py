"""Whether NVIDIA's own driver has left a checkpoint: only then the driver loads the rest."""

import os
from pathlib import Path

FILE = "checkpoint.json"
"""In the directory that both drivers share."""


def is_there(directory: Path) -> bool:
    """Tell whether there is a checkpoint, of whatever kind the file may be."""
    return os.path.lexists(directory / FILE)
