"""The path of a claim through the code, from the call of prepare to its CDI file, stays short.

It is counted by tracing the prepare of a whole GPU: how many files the calls enter one after the
other, and how often they return to a file that they have left. Values that are only read on the
path do not count, nor does what all code uses: locks, files, texts.
"""

import sys
from pathlib import Path
from types import FrameType

import dra_driver
from worlds.driver import Driver

ROOT = Path(dra_driver.__file__).parent
VALUE_FILES = {"cdi/model.py", "sharing/base.py", "claims/state/locks.py"}
VALUE_PACKAGES = {"devices", "host", "claims/model"}
CONFIGS = "claims/model/config.py"


def test_prepare_enters_few_files_and_rarely_returns_to_one(driver: Driver) -> None:
    first, claim = (driver.api.add(f"gpu-{n}", uid=f"uid-{n}", name=f"claim-{n}") for n in (1, 2))
    driver.prepare(first)
    entered: list[str] = []

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        file = Path(code.co_filename)
        if event == "call" and file.is_relative_to(ROOT) and not code.co_name.startswith("<"):
            name = str(file.relative_to(ROOT))
            is_value = name in VALUE_FILES or VALUE_PACKAGES & set(map(str, Path(name).parents))
            if code.co_name == "_prepare":
                entered.clear()
            if (name == CONFIGS or not is_value) and entered[-1:] != [name]:
                entered.append(name)

    sys.setprofile(enter)
    try:
        driver.prepare(claim)
    finally:
        sys.setprofile(None)
    del entered[entered.index("cdi/store.py") + 1 :]
    assert len(entered) <= 30, entered
    assert len(entered) - len(set(entered)) <= 10, entered
