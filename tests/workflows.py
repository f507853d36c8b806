"""The workflows in .github, as tests read them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
WORKFLOWS = REPOSITORY / ".github" / "workflows"


def workflow(name: str) -> dict[Any, Any]:
    """What the file says."""
    found: dict[Any, Any] = yaml.safe_load((WORKFLOWS / f"{name}.yaml").read_text())
    return found


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a job; none if it is another workflow."""
    found: list[dict[str, Any]] = job.get("steps", [])
    return found


def scripts(job: dict[str, Any]) -> list[str]:
    """What a job's steps run."""
    return [step["run"] for step in steps(job) if "run" in step]


def script(job: dict[str, Any], words: str) -> str:
    """The one script of a job that has the words."""
    (found,) = (text for text in scripts(job) if words in text)
    return found


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each job of each workflow, by its names."""
    for path in sorted(WORKFLOWS.glob("*.y*ml")):
        for name, job in workflow(path.stem)["jobs"].items():
            yield f"{path.stem}/{name}", job
