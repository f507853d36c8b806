"""What becomes of a test that needs what this machine does not have."""

import os
from typing import NoReturn

import pytest

LACKING = "TESTS_WITHOUT"
"""What hack/test could not make ready on this machine: names of hack/ready.py, with blanks."""


def lacks(need: str, reason: str) -> NoReturn:
    """Skip the test where this machine cannot have it; else fail, and say what makes it ready.

    With E2E_REQUIRED=1 no test is skipped for it.
    """
    is_lacking = need in os.environ.get(LACKING, "").split()
    if is_lacking and os.environ.get("E2E_REQUIRED") != "1":
        pytest.skip(f"{need} is not available on this machine: {reason}")
    pytest.fail(f"{need} is not ready: run `.venv/bin/python hack/ready.py {need}` ({reason})")
