"""The sources of an image, and its key in the cache.

In: the repository, an architecture, a target of the Dockerfile. Out: the files that the build may
read, and a digest of everything that determines the image. Debian's packages are not part of it:
they are the newest at the time of the build, and a cached image keeps the ones it was built with.
"""

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cluster.versions import arch_of_this_machine
from tracked import tracked

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "dra-driver"
TARGETS = ("driver", "simulator")
ARCHITECTURES = ("amd64", "arm64")

_DECIDING = (
    *("Dockerfile", ".dockerignore", "LICENSE", "README.md", "api", "dra_driver", "pyproject.toml"),
    *("hack/image/build.lock", "hack/image/packages", "hack/image/rootfs"),
    *("hack/image/runtime.lock", "hack/image/site"),
)
_LEFT_OUT = {
    "driver": ("dra_driver/bench/", "dra_driver/simulator/"),
    "simulator": ("dra_driver/bench/",),
}
"""Distributions that are in no image, so that their changes cause no builds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One image: a target of the Dockerfile for an architecture."""

    target: str
    arch: str
    repository: Path = REPOSITORY

    @property
    def tag(self) -> str:
        """The tag that the manifests use; the simulator's has a suffix."""
        own = version(self.repository)
        return own if self.target == "driver" else f"{own}-{self.target}"

    @property
    def reference(self) -> str:
        """The image's full name, to which container runtimes complete the one in the manifests."""
        return f"docker.io/library/{NAME}:{self.tag}"

    @property
    def key(self) -> str:
        """Digest of all files and settings that determine the image."""
        digest = hashlib.sha256(f"{self.target} {self.arch}\n".encode())
        for path in sources(self.repository):
            if path.startswith(_LEFT_OUT[self.target]):
                continue
            file = self.repository / path
            executable = file.stat().st_mode & 0o100
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{path} {bool(executable)} {content}\n".encode())
        return digest.hexdigest()[:16]


own_architecture = arch_of_this_machine


def version(repository: Path = REPOSITORY) -> str:
    """The project's version in pyproject.toml."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def sources(repository: Path) -> list[str]:
    """The files that determine the image and that git knows or would add, sorted."""
    return tracked(repository, *_DECIDING)
