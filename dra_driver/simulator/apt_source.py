"""A separate apt configuration for the non-free part of this machine's Debian archive.

In: the machine's package sources. Out: apt-get options that use a source list, lists and cache in
a given folder, so that nothing of the machine's own configuration changes. The archive and its
keyring are the ones the machine already trusts; only the components differ.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from dra_driver.errors import SetupError

_COMPONENTS = "contrib non-free"
_CONNECT_SECONDS = 10


class Source(Struct, frozen=True, kw_only=True):
    """One entry of a package source list."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str


def options(folder: Path, apt: Path = Path("/etc/apt")) -> list[str]:
    """Write a source list into `folder` and return the apt-get options that use only it.

    Raises SetupError if the machine's sources name no Debian archive.
    """
    source = debian_archive(list(sources(apt)))
    signed = f"Signed-By: {source.signed_by}\n" if source.signed_by else ""
    (folder / "debian.sources").write_text(
        f"Types: deb\nURIs: {source.uri}\nSuites: {source.suites[0]}\n"
        f"Components: {_COMPONENTS}\n{signed}"
    )
    for place in ("lists/partial", "cache/archives/partial"):
        (folder / place).mkdir(parents=True)
    chosen = {
        "Dir::Etc::SourceList": folder / "debian.sources",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",  # the unprivileged _apt user cannot write to our folder
        "APT::Update::Error-Mode": "any",  # without it an unreachable archive is only a warning
        "Acquire::Languages": "none",
        "Acquire::Retries": 1,
        "Acquire::http::Timeout": _CONNECT_SECONDS,
        "Acquire::https::Timeout": _CONNECT_SECONDS,
    }
    return [part for key, value in chosen.items() for part in ("-o", f"{key}={value}")]


def debian_archive(known: list[Source]) -> Source:
    """Pick the main archive: a source of component main with a plain suite.

    Raises SetupError if there is none.
    """
    for source in known:
        plain = [suite for suite in source.suites if re.fullmatch(r"[a-z]+", suite)]
        if "main" in source.components and plain and "/debian" in source.uri:
            return Source(
                uri=source.uri,
                suites=(plain[0],),
                components=source.components,
                signed_by=source.signed_by,
            )
    raise SetupError("this machine's package sources name no Debian archive")


def sources(apt: Path) -> Iterator[Source]:
    """Read sources.list and sources.list.d, in apt's two formats."""
    parts = apt / "sources.list.d"
    for path in [apt / "sources.list", *sorted(parts.glob("*.list"))]:
        if path.is_file():
            yield from _one_line_entries(path.read_text())
    for path in sorted(parts.glob("*.sources")):
        yield from _stanzas(path.read_text())


def _one_line_entries(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[(?P<options>[^]]*)\]\s*)?(?P<rest>[^#]+)", line)
        words = match["rest"].split() if match else []
        if match and len(words) >= 3:
            signed = re.search(r"signed-by=(\S+)", match["options"] or "")
            yield Source(
                uri=words[0],
                suites=(words[1],),
                components=tuple(words[2:]),
                signed_by=signed[1] if signed else "",
            )


def _stanzas(text: str) -> Iterator[Source]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields = {
            key.strip().lower(): value.strip()
            for key, colon, value in (line.partition(":") for line in stanza.splitlines())
            if colon and not key.startswith((" ", "\t"))
        }
        if "deb" not in fields.get("types", "").split() or fields.get("enabled") == "no":
            continue
        for uri in fields.get("uris", "").split():
            yield Source(
                uri=uri,
                suites=tuple(fields.get("suites", "").split()),
                components=tuple(fields.get("components", "").split()),
                signed_by=fields.get("signed-by", ""),
            )
