"""CRI-O's programs, compiled from its Go module, and the other programs that it needs.

In: the go.mod that pins it, and a Go. Out, in a folder: crio itself, `copyimg` of its tests, which
writes images into its storage, `pinns`, a program in C of the same module, and conmon from Debian's
package, which runs between CRI-O and each container. It is built without libseccomp, which would
have to be installed.
"""

import shutil
import subprocess
from pathlib import Path

from cluster import debian
from cluster.build import Job, build, module_folder
from cluster.errors import SourceError
from cluster.progress import Progress
from cluster.toolchain import Go
from cluster.versions import CRIO_GO_MOD, CRIO_MODULE, Versions

PROGRAMS = ("crio", "copyimg", "pinns", "conmon")
TAGS = (
    "containers_image_ostree_stub",
    "containers_image_openpgp",
    "exclude_graphdriver_btrfs",
)
COMPILE_S = 120


def job(versions: Versions) -> Job:
    """The jobs that compile crio and copyimg."""
    return Job(
        title=f"CRI-O {versions.crio}",
        go_mod=CRIO_GO_MOD,
        packages=(f"{CRIO_MODULE}/cmd/crio", f"{CRIO_MODULE}/test/copyimg"),
        tags=TAGS,
    )


def bring(go: Go, versions: Versions, folder: Path, cache: Path, progress: Progress) -> None:
    """Put all programs into a folder.

    Raises SourceError if one is not available.
    """
    debian.extract("conmon", {"usr/bin/conmon": "conmon"}, folder, cache)
    build(go, job(versions), folder, progress)
    sources = sorted((module_folder(go, job(versions), CRIO_MODULE) / "pinns" / "src").glob("*.c"))
    compiler = shutil.which("cc")
    if compiler is None:
        raise SourceError("there is no C compiler here (cc), which CRI-O's pinns needs")
    command = [compiler, "-std=c99", "-Os", "-static", "-o", str(folder / "pinns")]
    command += map(str, sources)
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    if done.returncode != 0:
        raise SourceError(f"cc did not compile pinns: {done.stderr.strip()}")
