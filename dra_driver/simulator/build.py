"""Compiles the simulated libnvidia-ml.so.1, and stand-ins for other driver libraries, with `cc`.

In: the C sources beside this module, a cache folder. Out: shared objects, each built once per
content of its sources and kept in the cache. A build is written under a temporary name and
renamed, so two processes that build at once do no harm.
"""

import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dra_driver.errors import SetupError

SONAME = "libnvidia-ml.so.1"
CUDA_SONAME = "libcuda.so.1"
SOURCES = Path(__file__).with_name("nvml")
STAND_INS = Path(__file__).with_name("standins")

_STRICT = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
_SHARED = ("-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs")


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return where compiled libraries and downloaded packages are kept for this user."""
    base = environment.get("XDG_CACHE_HOME") or str(
        Path(environment.get("HOME") or tempfile.gettempdir()) / ".cache"
    )
    return Path(base) / "dra-driver" / "simulator"


def find_compiler(environment: Mapping[str, str]) -> str:
    """Return the C compiler: `$CC`, or `cc`, `gcc` or `clang` from the path.

    Raises SetupError if there is none.
    """
    chosen = environment.get("CC")
    for name in [chosen] if chosen else ["cc", "gcc", "clang"]:
        if path := shutil.which(name, path=environment.get("PATH")):
            return path
    raise SetupError(
        f"the simulated NVML is written in C and no C compiler was found "
        f"(looked for {chosen or 'cc, gcc, clang'}); install one, on Debian: "
        f"apt-get install gcc libc6-dev"
    )


@functools.cache
def functions() -> frozenset[str]:
    """Return what NVML functions the simulated library has, before any is left out."""
    texts = (path.read_text() for path in sorted(SOURCES.glob("*.c")))
    return frozenset(name for text in texts for name in re.findall(r"\bnvml[A-Z]\w+", text))


def compile_library(
    cache: Path, environment: Mapping[str, str], *, without: Sequence[str] = ()
) -> Path:
    """Build the simulated NVML, or return the one built before from the same sources.

    Args:
        cache: folder for results, made if missing.
        environment: where `CC` and `PATH` are looked up.
        without: names of functions that the library must not export, like an older driver's.

    Raises:
        SetupError: no compiler, or it refused the sources.
    """
    sources = dict(_library_sources())
    link = [f"-Wl,-soname,{SONAME}"]
    if without:
        sources["hidden.map"] = (
            "{ local: " + " ".join(f"{n};" for n in sorted(set(without))) + " };\n"
        )
        link.append("-Wl,--version-script=hidden.map")
    return _build(sources, [*_SHARED, *link], cache, environment)


@functools.cache
def _library_sources() -> Mapping[str, str]:
    """Files of the library by name, kept because one process may make many machines."""
    return {path.name: path.read_text() for path in sorted(SOURCES.glob("*.[ch]"))}


def compile_stand_in(soname: str | None, cache: Path, environment: Mapping[str, str]) -> Path:
    """Build an empty shared object with this soname, or without one.

    Raises SetupError if there is no compiler, or it failed.
    """
    source = {"empty.c": "typedef int simulator_stand_in;\n"}
    named = [f"-Wl,-soname,{soname}"] if soname else []
    return _build(source, [*_SHARED, *named], cache, environment)


def compile_cuda(cache: Path, environment: Mapping[str, str]) -> Path:
    """Build the stand-in for libcuda.so.1, which reads the machine's state.

    Raises SetupError if there is no compiler, or it failed.
    """
    files = (STAND_INS / "cuda.c", SOURCES / "state.h", SOURCES / "state_file.c")
    sources = {path.name: path.read_text() for path in files}
    return _build(sources, [*_SHARED, f"-Wl,-soname,{CUDA_SONAME}"], cache, environment)


def compile_program(source: str, cache: Path, environment: Mapping[str, str]) -> Path:
    """Build one of the stand-in programs from its source file's name.

    Raises SetupError if there is no compiler, or it failed.
    """
    return _build({source: (STAND_INS / source).read_text()}, [], cache, environment)


def _build(
    sources: Mapping[str, str], link: Sequence[str], cache: Path, environment: Mapping[str, str]
) -> Path:
    compiler = find_compiler(environment)
    key = hashlib.sha256(repr((sorted(sources.items()), list(link), _STRICT, compiler)).encode())
    built = cache / key.hexdigest()[:24]
    if built.exists():
        return built
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_text(text)
        units = [name for name in sources if name.endswith(".c")]
        command = [compiler, *_STRICT, *link, "-o", "built", *units, "-lpthread", "-ldl"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            raise SetupError(
                f"{compiler} could not compile the simulator's C sources "
                f"(exit status {done.returncode}): {done.stderr.strip()}"
            )
        (Path(folder) / "built").replace(built)
    return built
