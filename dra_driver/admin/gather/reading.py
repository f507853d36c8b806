"""How parts of an archive are collected and packed, with a reason if one is missing.

In: parts by the name of their file, and a time limit in seconds for all. Out: their documents, what
is missing, and the archive: a tar.gz whose first file is `manifest.json` (format and version of the
archive, what made it and when, what is missing and why). Parts are made in parallel, each in its
own thread: one that hangs, in NVML or on a dead file system, is abandoned, and named.
"""

import gzip
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from dra_driver.admin.doctor.facts.once import begun
from dra_driver.admin.doctor.facts.places import read_text
from dra_driver.errors import DriverError

FORMAT, VERSION = "dra-driver-gather", 1
MANIFEST, PROFILE = "manifest.json", "profile.yaml"
NVML, PCI, NODE, FILES = "nvml.json", "pci.json", "node.json", "driver-files.json"
CONFIG, STATE, LOG, SLICES = "config.json", "state.json", "log.json", "slices.json"

_LONGEST = 1000
_LEVEL = 9


class Missing:
    """What is missing, each with the reason. Any thread may add to it."""

    def __init__(self) -> None:
        self._found: set[tuple[str, str]] = set()

    def add(self, what: object, reason: object) -> None:
        """Add one."""
        said = getattr(reason, "strerror", None) or reason
        self._found.add((str(what), str(said)[:_LONGEST]))

    def listed(self) -> list[dict[str, str]]:
        """Return all, in order."""
        return [{"what": what, "reason": reason} for what, reason in sorted(self._found)]


def documents_of(
    parts: Mapping[str, Callable[[], object]], missing: Missing, seconds: float
) -> dict[str, Any]:
    """Return what each part made, without those that failed or did not end in time."""
    end = time.monotonic() + seconds
    runs = {name: begun(f"gather-{name}", part) for name, part in parts.items()}
    documents: dict[str, Any] = {}
    for name, run in runs.items():
        try:
            documents[name] = run.result(max(0.0, end - time.monotonic()))
        except TimeoutError:
            missing.add(name, f"no answer in {seconds:g} s")
        except DriverError as error:
            missing.add(name, error)
        except Exception as error:  # noqa: BLE001 (one part must not stop the others)
            missing.add(name, f"{type(error).__name__}: {error}")
    return documents


def pack(about: Mapping[str, object], documents: Mapping[str, object]) -> bytes:
    """Return an archive: the profile as it is, others as JSON. Equal input gives equal bytes."""
    manifest = {"format": FORMAT, "version": VERSION, **about}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, document in [(MANIFEST, manifest), *sorted(documents.items())]:
            text = document if isinstance(document, str) else f"{json.dumps(document, indent=1)}\n"
            member, data = tarfile.TarInfo(name), text.encode()
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), _LEVEL, mtime=0)


def text_in(path: Path, missing: Missing) -> str | None:
    """Return a file's content, up to a megabyte; None if it is missing or unreadable."""
    try:
        return read_text(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        missing.add(path, error)
        return None


def known_lines(text: str, keys: Iterable[str], joint: str = ":") -> dict[str, str]:
    """Return the lines such as `key: value` that have these keys."""
    pairs = (line.partition(joint) for line in text.splitlines())
    said = {key.strip(): value.strip()[:_LONGEST] for key, is_told, value in pairs if is_told}
    return {key: said[key] for key in keys if key in said}


def matching(text: str | None, pattern: str) -> str | None:
    """Return a text without space around it if all of it matches a pattern, else None."""
    stripped = (text or "").strip()
    return stripped if re.fullmatch(pattern, stripped) else None


def plain(value: Any) -> Any:
    """Return one of our values as JSON: structs by their fields."""
    return to_builtins(value, enc_hook=str, str_keys=True)
