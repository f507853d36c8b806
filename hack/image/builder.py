"""Builds images with Debian's buildah, without a registry and without a daemon.

In: a recipe. Out: an archive, kept in the user's cache under the recipe's key. The base image is
made with debootstrap and stands for the one that the Dockerfile names. Each build has a storage of
its own, which is removed afterwards; a build runs in a chroot, so root is needed, but no user
namespaces, and no control groups.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from image import archive
from image.archive import ImageError
from image.recipe import NAME, Recipe, own_architecture, version

SUITE = "trixie"
BASE = f"docker.io/library/debian:{SUITE}-slim"
MIRROR = "http://deb.debian.org/debian"
"""As in debian.sources of the base image; packages are verified by Debian's keys."""

KEPT = 6
"""How many archives are kept: two of driver and simulator, one of each for the other platform."""

_PATIENCE_S = 1800
_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_PROGRAMS = ("buildah", "debootstrap")
"""The packages that have these programs."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return where this user's images are kept."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root"), ".cache")
    return Path(base) / "dra-driver" / "image"


@dataclass(slots=True, kw_only=True)
class Builder:
    """Builds what is not in the cache. Of two processes that build, one waits for the other.

    Attributes:
        cache: folder for archives and the base, made if missing.
        say: called with a text for each step that takes long.
        environment: where PATH, PIP_CERT and SSL_CERT_FILE are looked up.
    """

    cache: Path
    say: Callable[[str], None]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def archive(self, recipe: Recipe, *, fresh: bool = False) -> Path:
        """Return the archive of a recipe's image, built if it is not there, or again.

        Raises ImageError if it cannot be built; the text has the end of the build's output.
        """
        kept = self.cache / f"{recipe.target}-{recipe.arch}-{recipe.key}.tar"
        if kept.exists() and not fresh:
            os.utime(kept)
            return kept
        if self.environment.get("CLUSTER_FETCH") == "never":
            raise ImageError(
                f"{kept} is not there, and no image is built within a test: `hack/ready.py image` "
                "builds it"
            )
        self.cache.mkdir(parents=True, exist_ok=True)
        with self._alone():
            if fresh or not kept.exists():
                self._need_programs()
                self._clear_half_builds()
                self._build(recipe, kept)
                self._forget_old()
        return kept

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _need_programs(self) -> None:
        if os.geteuid() != 0:
            raise ImageError(
                "building the image without a registry needs root: run it with sudo; where the "
                "base image can be pulled, `docker build .` makes the same image"
            )
        search = self.environment.get("PATH")
        missing = [program for program in _PROGRAMS if not shutil.which(program, path=search)]
        if not missing:
            return
        if not shutil.which("apt-get", path=search):
            raise ImageError(
                f"not found: {' and '.join(missing)}: install them; where the base image "
                "can be pulled, `docker build .` makes the same image"
            )
        self.say(f"installing {' '.join(missing)}")
        apt = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300")
        self._run([*apt, "update"])
        self._run([*apt, "install", "-y", "--no-install-recommends", *missing])

    def _build(self, recipe: Recipe, kept: Path) -> None:
        base = self._base()
        with tempfile.TemporaryDirectory(prefix=".build.", dir=self.cache) as folder:
            buildah = _Buildah(folder=Path(folder), run=self._run)
            buildah.import_base(base)
            self.say(f"building {recipe.reference} for {recipe.arch} (about two minutes)")
            buildah.build(recipe, self._secrets())
            made = Path(folder) / "archive.tar"
            archive.write(buildah.layout(), made, recipe.reference)
            made.replace(kept)

    def _base(self) -> Path:
        """The base image's files as a tar, for this machine's architecture, on which it runs."""
        kept = self.cache / f"base-{SUITE}.tar"
        if kept.exists():
            return kept
        self.say(f"making the base image of Debian {SUITE} (about a minute)")
        with tempfile.TemporaryDirectory(prefix=".base.", dir=self.cache) as folder:
            root, made = Path(folder) / "root", Path(folder) / "base.tar"
            self._run(["debootstrap", "--variant=minbase", SUITE, str(root), MIRROR])
            for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
                shutil.rmtree(root / leftover, ignore_errors=True)
            self._run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(made), "."])
            made.replace(kept)
        return kept

    def _secrets(self) -> list[str]:
        """The bundle of certificates that this machine trusts, for proxies that intercept TLS."""
        chosen = self.environment.get("PIP_CERT") or self.environment.get("SSL_CERT_FILE")
        bundle = Path(chosen or _CA_BUNDLE)
        return [f"--secret=id=ca,src={bundle}"] if bundle.is_file() else []

    def _clear_half_builds(self) -> None:
        """Remove what a killed build has left; only the holder of the lock builds."""
        for folder in (*self.cache.glob(".build.*"), *self.cache.glob(".base.*")):
            shutil.rmtree(folder, ignore_errors=True)

    def _forget_old(self) -> None:
        archives = [*self.cache.glob("driver-*.tar"), *self.cache.glob("simulator-*.tar")]
        by_use = sorted(archives, key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_use[KEPT:]:
            path.unlink()

    def _run(self, command: Sequence[str], folder: Path = Path("/")) -> None:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**self.environment, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_PATIENCE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ImageError(f"{command[0]} did not work: {error}") from error
        if done.returncode != 0:
            end = "\n".join(done.stdout.splitlines()[-25:])
            raise ImageError(f"{command[0]} failed with status {done.returncode}:\n{end}")


def driver_archive(say: Callable[[str], None]) -> Path:
    """Return the archive of the driver's image for this machine, as `Builder.archive` does."""
    builder = Builder(cache=cache_folder(os.environ), say=say)
    return builder.archive(Recipe(target="driver", arch=own_architecture()))


@dataclass(slots=True, kw_only=True)
class _Buildah:
    """buildah with a storage of its own in a folder."""

    folder: Path
    run: Callable[..., None]

    def import_base(self, base: Path) -> None:
        """Make the base image from a tar of its files."""
        context = self.folder / "base"
        context.mkdir()
        (context / "Dockerfile").write_text('FROM scratch\nADD base.tar /\nCMD ["bash"]\n')
        os.link(base, context / "base.tar")
        self._do("build", "--isolation=chroot", f"--tag={BASE}", str(context))

    def build(self, recipe: Recipe, secrets: Sequence[str]) -> None:
        """Build a recipe's target under the project's name."""
        words = [
            *("--isolation=chroot", "--pull-never", "--timestamp=0", *secrets),
            *(f"--platform=linux/{recipe.arch}", f"--target={recipe.target}", f"--tag={NAME}"),
            # Given by name, or this buildah looks for a base of the target's architecture.
            f"--build-arg=BUILDPLATFORM=linux/{own_architecture()}",
            f"--build-arg=VERSION={version(recipe.repository)}",
            f"--file={self.folder}/Dockerfile",
        ]
        text = (recipe.repository / "Dockerfile").read_text()
        (self.folder / "Dockerfile").write_text(re.sub("@sha256:[0-9a-f]+", "", text))
        self._do("build", *words, ".", folder=recipe.repository)

    def layout(self) -> Path:
        """Write the built image as an image layout; return its folder."""
        layout = self.folder / "layout"
        self._do("push", NAME, f"oci:{layout}")
        return layout

    def _do(self, verb: str, *words: str, folder: Path = Path("/")) -> None:
        # Copies of whole layers, because overlays do not work on a container's own overlay.
        storage = [f"--root={self.folder}/storage", f"--runroot={self.folder}/run"]
        scratch = ["env", f"TMPDIR={self.folder}"]
        self.run([*scratch, "buildah", *storage, "--storage-driver=vfs", verb, *words], folder)
