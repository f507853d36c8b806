"""Kubernetes' own readers of device metadata as programs (hack/cluster/go/metadata).

In: a file's text. Out: what the library of a Kubernetes version makes of it. 1.36 was the first
with such a library; its one knows v1alpha1 alone, and checks nothing by the API's rules.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.cluster import COMMAND
from testbed.commands import TestbedError, run

KNOWN: Mapping[str, tuple[str, ...]] = {"1.37": ("v1beta1", "v1alpha1"), "1.36": ("v1alpha1",)}
"""Versions of the API that each reader knows, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a reader has found, in which version of the API, and what validation says of it."""

    found: dict[str, Any]
    version: str
    invalid: str


def fetch() -> dict[str, Path]:
    """Where the programs are, by version of Kubernetes.

    Raises:
        TestbedError: they are not there.
    """
    said = run((sys.executable, COMMAND, "fetch", "metadata"))
    group, _, folder = said.partition(" ")
    found = {minor: Path(folder.strip()) / f"read-metadata-{minor}" for minor in KNOWN}
    if group != "metadata" or not all(program.exists() for program in found.values()):
        raise TestbedError(f"hack/cluster fetch did not say where the readers are, but: {said}")
    return found


def read(program: Path, data: str) -> Said:
    """What a reader makes of a file.

    Raises:
        TestbedError: it finds nothing in it; the text says why.
    """
    said = json.loads(run((program,), stdin=data))
    return Said(found=said["found"], version=said["version"], invalid=said.get("invalid", ""))


def where(program: Path, kind: str, name: str, request: str) -> str:
    """Where the reader of 1.37 looks for a file; `kind` is `claim` or `template`."""
    return run((program, kind, "where", name, request)).strip()
