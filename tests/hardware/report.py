"""What a run found, as JSON, without identities of the card, because reports are shared.

It is written after each test, because a card that is tried may crash its machine.
"""

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pynvml

from dra_driver.errors import DriverError
from dra_driver.host.files import write_whole
from hardware.card import Card
from hardware.run import Evidence, Run

_NAMES = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{4,27}", re.IGNORECASE)


class Report:
    """The report of one run, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hardware.json"
        self._run: Run | None = None
        self._found: dict[str, Any] = {}

    def begin(self, run: Run) -> None:
        """Write what card is tried."""
        gpu, seen = run.card.gpu, run.card.inventory
        self._run, self._serial = run, _serial(run.card)
        self._found = {
            "dra_driver": version("dra-driver"),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "answered_by": "simulator" if run.card.is_simulated else "card",
            "card": {
                "name": gpu.product_name,
                "uuid": gpu.uuid,
                "serial": self._serial,
                "gpu_driver": seen.driver_version,
                "cuda": ".".join(map(str, seen.cuda_version or ())),
                "kernel": platform.release(),
                "mig_mode": str(gpu.mig_mode),
            },
            "allowed": run.before.allow,
            "as_before": None,  # until the end
            "differences": [],
            "tests": [],
        }
        self._write()

    def add(self, name: str, outcome: str, reason: str, seconds: float) -> None:
        """Write what came of a test."""
        if self._run is None:
            return
        evidence = asdict(self._run.evidence)
        test = {"name": name, "outcome": outcome, "reason": reason, "seconds": round(seconds, 3)}
        self._found["tests"].append({**test, **evidence})
        self._run.evidence = Evidence()
        self._write()

    def end(self, differences: Sequence[str]) -> None:
        """Write whether the card is as before."""
        self._found |= {"as_before": not differences, "differences": differences}
        self._write()

    def summary(self) -> str:
        """The answers to the questions of docs/hardware.md, and where the report is."""
        if self._run is None:
            return ""
        by = f"({self._found['answered_by']}) "
        answers = {q: a for test in self._found["tests"] for q, a in test["answers"].items()}
        return "\n".join([*(f"{q} {by}{a}" for q, a in answers.items()), f"written: {self.path}"])

    def _write(self) -> None:
        text = json.dumps(self._found, indent=1, ensure_ascii=False) + "\n"
        if not os.environ.get("IDENTIFY"):
            text = _NAMES.sub(lambda name: f"{name[1]}-…", text)
            text = text.replace(self._serial, "left out") if self._serial else text
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, text.encode(), mode=0o644, durable=True)


def _serial(card: Card) -> str:
    try:
        with card.nvml() as library:
            return str(pynvml.nvmlDeviceGetSerial(library.handle(card.uuid)))
    except (pynvml.NVMLError, DriverError):
        return ""
