"""Kernels of the benchmark, compiled for a CPU: their very source, by way of cuda_on_cpu.h."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dra_driver.bench.tenant import matrices
from dra_driver.bench.tenant.kernels import Grid

Values = NDArray[np.generic]


class Kernels:
    """The compiled kernels."""

    def __init__(self, folder: Path) -> None:
        source = folder / "kernels.c"
        header = Path(__file__).with_suffix(".h").read_text()
        source.write_text(header + matrices.COMMON + matrices.TENSOR)
        library = folder / "kernels.so"
        options = (
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Werror",
            "-Wno-unknown-pragmas",
            "-fno-strict-aliasing",
        )
        words = ("cc", *options, "-fPIC", "-shared", source, "-o", library, "-lm")
        subprocess.run(words, check=True)
        self._library = ctypes.CDLL(str(library))

    def run(self, name: str, grid: Grid, *arguments: Values | int) -> None:
        """Run a kernel over arrays, which it may change."""
        values = [
            argument.ctypes.data if isinstance(argument, np.ndarray) else argument
            for argument in arguments
        ]
        values += [0] * (5 - len(values))
        sizes = (ctypes.c_uint * 4)(*grid.blocks, *grid.threads)
        self._library.run(getattr(self._library, name), sizes, (ctypes.c_void_p * 5)(*values))
