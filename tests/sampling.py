"""How much of a sweep a run takes: all of it by `make test LONG=1`, and a sample by `make test`."""

import os

EVERYTHING = os.environ.get("LONG") == "1"


def examples(most: int) -> int:
    """How many examples hypothesis tries, which are others in each run."""
    return most if EVERYTHING else most // 3
