"""Stand-ins for what identifies a node, the same everywhere in an archive.

In: documents of plain values, and names that were found. Out: the documents with each UUID
replaced, and in people's texts also each name, serial number and IP address. What looks like a
credential is always removed from such texts. A stand-in reveals nothing about what it stands for:
stand-ins are numbered in the order of their first use.
"""

import ipaddress
import re
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

_UUID = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])",
    re.IGNORECASE,
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:]|\.\d)", re.IGNORECASE)
_CREDENTIAL = re.compile(
    r"(?i)\b(?:bearer|basic)\s+[\w.+/=~-]{6,}"
    r"|\b[\w-]*(?:token|passw(?:or)?d|secret|api[_-]?key|credential)[\w-]*[\"']?\s*[=:]\s*\S+"
    r"|(?<=://)[^/\s@]+@"
    r"|\beyJ[\w-]{8,}\.[\w.-]+"
    r"|-----BEGIN[^-]*-----"
)
_REMOVED = "[removed]"
_KEPT = frozenset({"", "default", "kube-system", "dra-driver", "gpu-operator", "localhost"})
"""Names that identify nothing."""

_FIXED = frozenset({"event", "level", "timestamp"})
"""Keys of a log line whose values are the program's own words."""

_CLUSTER = "clusterUuid"
"""The one UUID that NVML gives as bytes."""


class StandIns:
    """Replaces identities, unless `identify` keeps them."""

    def __init__(self, *, identify: bool) -> None:
        self._identify = identify
        self._uuids: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._serials: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._pattern: re.Pattern[str] | None = None

    def learn(self, kind: str, name: str) -> None:
        """Replace a name from now on, by its kind and a number."""
        if self._identify or name in _KEPT or name in self._names:
            return
        self._counts[kind] += 1
        self._names[name] = f"{kind}-{self._counts[kind]}"
        self._pattern = None

    def learn_serial(self, number: str) -> None:
        """Replace a serial number from now on, by another one."""
        if not self._identify and number not in self._serials:
            known = len(self._serials) + 1
            self._names[number] = self._serials[number] = f"{known:0{len(number)}d}"
            self._pattern = None

    def of_facts(self, document: Any) -> Any:
        """Return a document of a machine's facts without its UUIDs and serial numbers."""
        if isinstance(document, Mapping):
            return {
                self._facts_text(str(key)): (
                    self._cluster(value) if key == _CLUSTER else self.of_facts(value)
                )
                for key, value in document.items()
            }
        if isinstance(document, (list, tuple)):
            return [self.of_facts(part) for part in document]
        return self._facts_text(document) if isinstance(document, str) else document

    def of_texts(self, document: Any) -> Any:
        """Return a document with people's texts, without anything that identifies the node."""
        if isinstance(document, Mapping):
            return {
                self._facts_text(str(key)): value if key in _FIXED else self.of_texts(value)
                for key, value in document.items()
            }
        if isinstance(document, (list, tuple)):
            return [self.of_texts(part) for part in document]
        return self._text(document) if isinstance(document, str) else document

    def _facts_text(self, text: str) -> str:
        if self._identify:
            return text
        return self._serials.get(text) or _UUID.sub(self._uuid, text)

    def _text(self, text: str) -> str:
        text = _CREDENTIAL.sub(_REMOVED, text)
        if self._identify:
            return text
        text = _UUID.sub(self._uuid, text)
        text = _IPV6.sub(self._address, _IPV4.sub(self._address, text))
        if self._names:
            self._pattern = self._pattern or _any_of(self._names)
            text = self._pattern.sub(lambda match: self._names[match[0]], text)
        return text

    def _uuid(self, match: re.Match[str]) -> str:
        text = match[0].lower()
        if not text.strip("0-"):
            return text
        known = len(self._uuids) + 1
        return self._uuids.setdefault(text, f"00000000-0000-4000-8000-{known:012x}")

    def _cluster(self, value: Any) -> Any:
        try:
            text = str(uuid.UUID(str(value)))
        except ValueError:
            return value
        return uuid.UUID(self._facts_text(text)).hex

    def _address(self, match: re.Match[str]) -> str:
        try:
            version = ipaddress.ip_address(match[0]).version
        except ValueError:
            return match[0]
        known = len(self._addresses) + 1
        made = f"192.0.2.{known % 256}" if version == 4 else f"2001:db8::{known:x}"
        return self._addresses.setdefault(match[0], made)


def _any_of(names: Mapping[str, str]) -> re.Pattern[str]:
    """Return a pattern for these names as separate words, longer ones first."""
    words = "|".join(re.escape(name) for name in sorted(names, key=lambda word: (-len(word), word)))
    return re.compile(rf"(?<![\w-])(?<!\w\.)(?:{words})(?!\.?[\w-])")
