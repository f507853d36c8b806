"""Compiles the simulated libnvidia-ml.so.1, and stand-ins for other driver libraries, with `cc`.

In: the C sources beside this module, a cache folder. Out: shared objects, each built once per
content of its sources and kept in the cache. A build is written under a temporary name and renamed,
so two processes can build at once. It also makes the ELF page at the front of the state file, which
is named like a driver library so that container tools mount it too: those tools (ldconfig, soname
readers) expect every such file to be ELF.
"""

import functools
import hashlib
import platform
import shutil
import struct
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
PAGE = 4096
_ET_DYN = 3
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 5, 6, 10, 11, 14
_MACHINES = {"x86_64": 62, "aarch64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
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
    """The library's files by name, cached because one process may make many machines."""
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


def library_page(soname: str | None) -> bytes:
    """Build the page for `soname`, or without one. Addresses equal file offsets."""
    dynamic_at = _HEADER.size + 2 * _SEGMENT.size
    entries = 6
    symbols_at = dynamic_at + entries * _ENTRY.size
    strings_at = symbols_at + 24  # one empty symbol
    strings = b"\0" + (soname or "").encode() + b"\0"
    dynamic = b"".join(
        _ENTRY.pack(tag, value)
        for tag, value in (
            (_DT_STRTAB, strings_at),
            (_DT_STRSZ, len(strings)),
            (_DT_SYMTAB, symbols_at),
            (_DT_SYMENT, 24),
            (_DT_NULL, 0) if soname is None else (_DT_SONAME, 1),
            (_DT_NULL, 0),
        )
    )
    identification = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, little endian
    header = _HEADER.pack(
        identification, _ET_DYN, _MACHINES.get(platform.machine(), 62), 1,
        0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 2, 0, 0, 0,
    )  # fmt: skip
    readable = 4
    load = _SEGMENT.pack(_PT_LOAD, readable, 0, 0, 0, PAGE, PAGE, PAGE)
    at_dynamic = _SEGMENT.pack(
        _PT_DYNAMIC, readable, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8
    )
    page = header + load + at_dynamic + dynamic + bytes(24) + strings
    return page.ljust(PAGE, b"\0")


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
