"""crun, compiled from the source of the Debian release that is named here.

In: nothing but apt, a C compiler, make and pkg-config. Out: crun in a folder, which needs no other
library than this machine's C library: what it is compiled with is unpacked, not installed, and
linked statically. Debian 12's own package (1.8.1) knows OCI 1.0 alone and starts no container of
these runtimes, and packages of later releases need a newer C library.
"""

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from cluster import debian
from cluster.errors import SourceError
from cluster.release import unpack

RELEASE = "trixie"
SOURCE = f"the source of Debian {RELEASE}'s package crun"
LIBRARIES = ("libcap-dev", "libjson-c-dev", "libseccomp-dev", "libyajl-dev")
"""crun reads JSON by yajl, and from 1.28 on by json-c."""
TOOLS = ("cc", "make", "pkg-config")
COMPILE_S = 600


def bring(folder: Path, cache: Path) -> None:
    """Put crun into a folder, in about a minute on two cores.

    Raises SourceError if its source, a library or a tool is not available, or it does not compile.
    """
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise SourceError(f"crun is compiled with {', '.join(lacking)}, not found on this machine")
    with tempfile.TemporaryDirectory(prefix=".crun.", dir=cache) as name:
        scratch = Path(name)
        made = _unpacked(debian.source("crun", RELEASE, scratch, cache))
        for library in LIBRARIES:
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
