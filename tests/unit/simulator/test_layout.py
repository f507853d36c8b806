"""The state file's layout in Python against what the C compiler made of it."""

import ctypes
import os

from dra_driver.simulator import build, layout


def test_python_and_c_agree_on_the_layout_of_the_state() -> None:
    library = ctypes.CDLL(str(build.compile_library(build.cache_folder(os.environ), os.environ)))
    text = ctypes.create_string_buffer(1 << 16)
    used = library.nvmlSimulatorLayout(text, len(text))
    assert used < len(text)
    lines = [line.split() for line in text.value.decode().splitlines()]
    in_c = {name: tuple(map(int, numbers)) for name, *numbers in lines}
    assert in_c == layout.describe()
