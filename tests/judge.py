"""The scheduler's own allocator as a program: says whether claims fit, and what they get.

In: questions as tests/allocation_cases.py makes them. Out: its answers.
The same way leads to the functions of Cluster Autoscaler and Karpenter (tests/autoscalers.py).
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from testbed.cluster import fetched
from testbed.commands import run


def fetch(group: str = "judge", name: str = "allocation-judge") -> Path:
    """Where the program of a group is; a TestbedError if it is not available."""
    return fetched(group) / name


def answers(program: Path, questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What it says of each question, in their order."""
    asked = "\n".join(map(json.dumps, questions))
    return [json.loads(line) for line in run((program,), stdin=asked, timeout=300).splitlines()]
