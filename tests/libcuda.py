"""A libcuda.so.1 for tests, compiled from libcuda.c. No GPU does any work under it."""

import subprocess
from pathlib import Path


def build(folder: Path) -> Path:
    """Compile it; return the folder to put on LD_LIBRARY_PATH."""
    out = folder / "libcuda.so.1"
    source = Path(__file__).with_suffix(".c")
    options = ("-std=gnu11", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")
    soname = "-Wl,-soname,libcuda.so.1"
    subprocess.run(["cc", *options, soname, source, "-o", out, "-ldl", "-lm"], check=True)
    return folder
