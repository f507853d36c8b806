"""The container runtimes that are not release downloads: CRI-O's programs, and crun.

In: the go.mod that pins CRI-O, and a Go; and nothing but apt, a C compiler, make and pkg-config.
Out, in a folder: crio itself, `copyimg` of its tests, which writes images into its storage,
`pinns`, a program in C of the same module, and conmon from Debian's package, which runs between
CRI-O and each container. It is built without libseccomp, which would have to be installed.

crun is compiled from the source of a Debian release, and needs no other library than this machine's
C library: what it is compiled with is unpacked, not installed, and linked statically. Debian 12's
own package (1.8.1) knows OCI 1.0 alone and starts no container of these runtimes, and packages of
later releases need a newer C library.
"""

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from cluster import debian
from cluster.build import Job, build, module_folder
from cluster.errors import SourceError
from cluster.progress import Progress
from cluster.release import unpack
from cluster.toolchain import Go
from cluster.versions import CRIO_GO_MOD, CRIO_MODULE, Versions

_RELEASE = "trixie"
CRUN_SOURCE = f"the source of Debian {_RELEASE}'s package crun"
_LIBRARIES = ("libcap-dev", "libjson-c-dev", "libseccomp-dev", "libyajl-dev")
"""crun reads JSON by yajl, and from 1.28 on by json-c."""
_TOOLS = ("cc", "make", "pkg-config")
CRIO_PROGRAMS = ("crio", "copyimg", "pinns", "conmon")
_TAGS = (
    "containers_image_ostree_stub",
    "containers_image_openpgp",
    "exclude_graphdriver_btrfs",
)
COMPILE_S = 600


def crio_job(versions: Versions) -> Job:
    """The jobs that compile crio and copyimg."""
    return Job(
        title=f"CRI-O {versions.crio}",
        go_mod=CRIO_GO_MOD,
        packages=(f"{CRIO_MODULE}/cmd/crio", f"{CRIO_MODULE}/test/copyimg"),
        tags=_TAGS,
    )


def bring_crio(go: Go, versions: Versions, folder: Path, cache: Path, progress: Progress) -> None:
    """Put all programs into a folder.

    Raises SourceError if one is not available.
    """
    debian.extract("conmon", {"usr/bin/conmon": "conmon"}, folder, cache)
    build(go, crio_job(versions), folder, progress)
    sources = sorted(
        (module_folder(go, crio_job(versions), CRIO_MODULE) / "pinns" / "src").glob("*.c")
    )
    compiler = shutil.which("cc")
    if compiler is None:
        raise SourceError("there is no C compiler here (cc), which CRI-O's pinns needs")
    command = [compiler, "-std=c99", "-Os", "-static", "-o", str(folder / "pinns")]
    command += map(str, sources)
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    if done.returncode != 0:
        raise SourceError(f"cc did not compile pinns: {done.stderr.strip()}")


def bring_crun(folder: Path, cache: Path) -> None:
    """Put crun into a folder, in about a minute on two cores.

    Raises SourceError if its source, a library or a tool is not available, or it does not compile.
    """
    if lacking := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise SourceError(f"crun is compiled with {', '.join(lacking)}, not found on this machine")
    with tempfile.TemporaryDirectory(prefix=".crun.", dir=cache) as name:
        scratch = Path(name)
        made = _unpacked(debian.source("crun", _RELEASE, scratch, cache))
        for library in _LIBRARIES:
            debian.unpack(library, scratch / "root", cache)
        _compile(made, scratch / "root" / "usr")
        shutil.copyfile(made / "crun", folder / "crun")
        (folder / "crun").chmod(0o755)


def _unpacked(archive: Path) -> Path:
    try:
        unpack(archive, archive.parent)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise SourceError(f"{archive.name} cannot be unpacked: {error}") from error
    return next(archive.parent.glob("*/configure")).parent


def _compile(made: Path, usr: Path) -> None:
    include = usr / "include"
    (libraries,) = {path.parent for path in usr.glob("lib/*/libyajl_s.a")}
    (libraries / "libyajl_s.a").rename(libraries / "libyajl.a")
    for shared in libraries.glob("*.so"):  # links to what is in other packages
        shared.unlink()
    flags = (
        *("--disable-systemd", "--disable-criu", "--disable-dl"),
        *(f"CPPFLAGS=-I{include}", f"LDFLAGS=-L{libraries}"),
        *(f"YAJL_CFLAGS=-I{include}", "YAJL_LIBS=-lyajl"),
        *(f"JSON_C_CFLAGS=-I{include}/json-c", "JSON_C_LIBS=-ljson-c"),
    )
    for command in (("./configure", *flags), ("make", "git-version.h"), ("make", "-j2", "crun")):
        done = subprocess.run(
            command, cwd=made, capture_output=True, text=True, timeout=COMPILE_S, check=False
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            why = [line for line in lines if "error:" in line] or lines[-1:]
            raise SourceError(f"{' '.join(command[:2])} of crun failed: {'; '.join(why)}")
