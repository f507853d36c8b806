"""Programs from the official release downloads, each checked against its published SHA-256.

In: exact versions. Out: executables in a folder. Kubernetes publishes single programs with a
`.sha256` beside each (dl.k8s.io); containerd, runc, etcd and the CNI plugins publish archives and
checksum files as GitHub releases. The two base addresses can be changed by the environment, for a
mirror or a test; an empty one switches that source off. A machine without internet has to notice
quickly, so a server may be silent for ten seconds.
"""

import hashlib
import io
import re
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from ssl import SSLError

from cluster.build import CONTAINERD_PROGRAMS, KUBERNETES_PROGRAMS
from cluster.errors import ChecksumError, SourceError, UnreachableError
from cluster.progress import Progress
from cluster.versions import Versions

KUBERNETES_URL = "https://dl.k8s.io/release"
GITHUB_URL = "https://github.com"
KUBERNETES_URL_ENV = "KUBE_RELEASE_URL"
GITHUB_URL_ENV = "GITHUB_RELEASE_URL"
CHUNK = 1 << 20
LONGEST_CHECKSUM_FILE = 1 << 20
FAILURES = (urllib.error.URLError, TimeoutError, ConnectionError, SSLError, HTTPException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One published file: its address, its checksum's address, and what to extract.

    `members` maps a path inside a tar archive to a program's name. Without members the file itself
    is the program called `name`.
    """

    name: str
    url: str
    checksum_url: str
    members: Mapping[str, str] = field(default_factory=dict)


def assets(group: str, versions: Versions, env: Mapping[str, str]) -> list[Asset]:
    """The published files of one group of programs; empty when that source is switched off."""
    arch = versions.arch
    if group == "kubernetes":
        base = env.get(KUBERNETES_URL_ENV, KUBERNETES_URL).rstrip("/")
        folder = f"{base}/v{versions.kubernetes}/bin/linux/{arch}"
        return [
            Asset(name=name, url=f"{folder}/{name}", checksum_url=f"{folder}/{name}.sha256")
            for name in KUBERNETES_PROGRAMS
            if base
        ]
    base = env.get(GITHUB_URL_ENV, GITHUB_URL).rstrip("/")
    return [_github_asset(group, versions, base)] if base else []


def _github_asset(group: str, versions: Versions, base: str) -> Asset:
    arch = versions.arch
    if group == "containerd":
        version = versions.containerd
        file = f"containerd-{version}-linux-{arch}.tar.gz"
        folder = f"{base}/containerd/containerd/releases/download/v{version}"
        members = {f"bin/{name}": name for name in CONTAINERD_PROGRAMS}
        checksum = f"{file}.sha256sum"
    elif group == "runc":
        folder = f"{base}/opencontainers/runc/releases/download/v{versions.runc}"
        file, checksum, members = f"runc.{arch}", "runc.sha256sum", {}
    elif group == "etcd":
        stem = f"etcd-v{versions.etcd}-linux-{arch}"
        folder = f"{base}/etcd-io/etcd/releases/download/v{versions.etcd}"
        file, checksum, members = f"{stem}.tar.gz", "SHA256SUMS", {f"{stem}/etcd": "etcd"}
    else:
        version = versions.cni_plugins
        folder = f"{base}/containernetworking/plugins/releases/download/v{version}"
        file = f"cni-plugins-linux-{arch}-v{version}.tgz"
        checksum = f"{file}.sha256"
        members = {name: name for name in ("bridge", "host-local", "loopback")}
    return Asset(
        name=group, url=f"{folder}/{file}", checksum_url=f"{folder}/{checksum}", members=members
    )


@dataclass(slots=True, kw_only=True)
class Downloads:
    """Fetches assets; remembers which servers did not answer, to ask each only once."""

    progress: Progress
    timeout_s: float = 10.0
    _silent: set[str] = field(default_factory=set, init=False)

    def fetch(self, asset: Asset, folder: Path) -> None:
        """Download, check and unpack one asset into a folder of executables.

        Raises:
            UnreachableError: the server did not answer.
            ChecksumError: the file is not the published one; it is deleted.
            SourceError: the server refused, or the file is not what was expected.
        """
        checksum = self._published_checksum(asset)
        partial = folder / f".{asset.name}.partial"
        try:
            actual = self._download(asset, partial)
            if actual != checksum:
                raise ChecksumError(
                    f"{asset.url} has SHA-256 {actual}, but {checksum} is published for it; "
                    "the download was thrown away (is a proxy changing it?)"
                )
            if asset.members:
                _unpack(partial, asset, folder)
            else:
                partial.chmod(0o755)
                partial.replace(folder / asset.name)
        finally:
            partial.unlink(missing_ok=True)

    def _published_checksum(self, asset: Asset) -> str:
        content = io.BytesIO()
        self._copy(asset.checksum_url, content, limit=LONGEST_CHECKSUM_FILE, name=asset.name)
        text = content.getvalue().decode("ascii", "replace")
        file = asset.url.rsplit("/", 1)[1]
        for line in text.splitlines():
            # "HASH  FILE", "HASH *FILE", or the hash alone.
            match = re.fullmatch(r"([0-9a-fA-F]{64})(?:\s+\*?(\S+))?", line.strip())
            if match and (match[2] is None or PurePosixPath(match[2]).name == file):
                return match[1].lower()
        raise SourceError(f"{asset.checksum_url} holds no SHA-256 checksum for {file}")

    def _download(self, asset: Asset, target: Path) -> str:
        with target.open("wb") as out:
            self._copy(asset.url, out, limit=None, name=asset.name)
        with target.open("rb") as done:
            return hashlib.file_digest(done, "sha256").hexdigest()

    def _copy(self, url: str, out: io.BufferedIOBase, *, limit: int | None, name: str) -> None:
        host = url.split("/", 3)[2]
        if host in self._silent:
            raise UnreachableError(f"{host} cannot be reached")
        request = urllib.request.Request(url, headers={"User-Agent": "hack/cluster"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                expected = int(reply.headers.get("Content-Length") or -1)
                got = 0
                while chunk := reply.read(CHUNK):
                    got += len(chunk)
                    if limit is not None and got > limit:
                        raise SourceError(f"{url} is far longer than a checksum file")
                    out.write(chunk)
                    whole = f" of {expected >> 20}" if expected > 0 else ""
                    self.progress.update(f"{name}: downloaded {got >> 20}{whole} MiB from {host}")
        except urllib.error.HTTPError as error:
            raise SourceError(f"{url} answered {error.code} {error.reason}") from error
        except FAILURES as error:
            reason = getattr(error, "reason", None) or error
            self._silent.add(host)
            raise UnreachableError(f"{host} cannot be reached: {reason}") from error
        if 0 <= expected != got:
            raise SourceError(f"{url} broke off after {got} of {expected} bytes; try again")


def _unpack(archive: Path, asset: Asset, folder: Path) -> None:
    wanted = dict(asset.members)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = wanted.get(member.name.removeprefix("./"))
                content = tar.extractfile(member) if name and member.isfile() else None
                if name is None or content is None:
                    continue
                with (folder / name).open("wb") as out:
                    shutil.copyfileobj(content, out)
                (folder / name).chmod(0o755)
                del wanted[member.name.removeprefix("./")]
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SourceError(f"{asset.url} is not a readable archive: {error}") from error
    if wanted:
        raise SourceError(f"{asset.url} holds no {', '.join(wanted)}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive that is known to be whole and unchanged; raises OSError or TarError."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # Debian 12's Python has none yet
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)  # noqa: S202 (made here, or checked by apt)
