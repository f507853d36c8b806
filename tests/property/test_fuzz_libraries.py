"""Driver roots with broken libraries and loader caches: what is found is there, and soon."""

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import driver_tree
import fuzz
from dra_driver.cdi.driver_libraries import DriverLibraries, find_driver_libraries
from dra_driver.devices.driver_root.elf import read_soname
from dra_driver.devices.driver_root.libraries import locate
from dra_driver.devices.nvml.library import NvmlLibrary
from dra_driver.errors import DeviceError
from sampling import examples

NO_FIXTURE_CHECK = [HealthCheck.function_scoped_fixture]
MOST_BYTES = 8 * 1024**2
"""What a file of some hundred bytes may make this process allocate."""

elves = st.builds(
    driver_tree.elf,
    st.sampled_from(["libcuda.so.1", "x" * 300, "lib{version}.so", "%s"]),
    bits=st.sampled_from([32, 64]),
    order=st.sampled_from("<>"),
)


@given(content=elves.flatmap(fuzz.broken) | st.binary(max_size=300))
@settings(deadline=None, suppress_health_check=NO_FIXTURE_CHECK, max_examples=examples(300))
@example(b"\x7fELF\x02\x01" + b"\xff" * 300)
def test_a_library_of_any_content_has_a_plain_soname_or_none(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "library"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        soname = read_soname(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert soname is None or (soname.isascii() and 0 < len(soname) <= 255 and "/" not in soname)


@st.composite
def caches(draw: st.DrawFn) -> bytes:
    """A loader cache, well formed but for the offsets and the texts they lead to."""
    texts = draw(
        st.lists(
            st.sampled_from(
                [b"libcuda.so.1", b"/opt/libcuda.so.1", b"/../../etc", b"/" + b"y" * 300]
            )
            | st.binary(max_size=30),
            min_size=1,
            max_size=6,
        )
    )
    strings = b"\0".join(texts)
    start = 48 + 24 * 4
    offsets = st.integers(0, start + len(strings)) | st.sampled_from([2**32 - 1, 0])
    entries = b"".join(
        struct.pack("=iIIIQ", 0x0303, draw(offsets), draw(offsets), 0, 0) for _ in range(4)
    )
    count = draw(st.sampled_from([4, 0, 2**32 - 1]))
    head = b"glibc-ld.so.cache1.1" + struct.pack("=II", count, len(strings))
    return head.ljust(48, b"\0") + entries + strings


@given(content=caches() | caches().flatmap(fuzz.broken) | st.binary(max_size=100))
@settings(deadline=None, suppress_health_check=NO_FIXTURE_CHECK, max_examples=examples(300))
def test_a_loader_cache_of_any_content_leads_only_to_files_of_the_root(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "opt").mkdir(exist_ok=True)
    (tmp_path / "opt/libcuda.so.1").touch()
    (tmp_path / "etc/ld.so.cache").write_bytes(content)
    for found in locate(tmp_path, "*"):
        assert (tmp_path / found.lstrip("/")).is_file()
        assert found.isascii()


@pytest.mark.timeout(30)
def test_a_loader_cache_without_ends_of_texts_is_soon_done(tmp_path: Path) -> None:
    count, size = 20_000, 4 * 1024**2
    entry = struct.pack("=iIIIQ", 0x0303, 48 + 24 * count, 48 + 24 * count, 0, 0)
    head = b"glibc-ld.so.cache1.1" + struct.pack("=II", count, size)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(head.ljust(48, b"\0") + entry * count + b"a" * size)
    assert locate(tmp_path, "*.so") == ()


NAMES = st.sampled_from(
    [
        "libcuda.so.535.261.03", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ml.so.535.261.03",
        "lib{}.so.535.261.03", "lib{version}.so.535.261.03", "lib\udcff.so.535.261.03",
        "lib%s.so.535.261.03", "lib a.so.535.261.03", "libcuda.so." + "9" * 200, "libcuda.so.",
        "libcuda.so.1.2.3.4.5", "libcuda.so.0.0", "libnvidia-ml.so.\n", "libcuda.so",
    ]
)  # fmt: skip
KINDS = st.sampled_from(["file", "elf", "odd soname", "folder", "link", "loop", "pipe"])


@given(files=st.dictionaries(NAMES, KINDS, max_size=6))
@settings(deadline=None, suppress_health_check=NO_FIXTURE_CHECK)
@pytest.mark.timeout(60)
@example({"libcuda.so.535.261.03": "elf", "lib{}.so.535.261.03": "odd soname"})
@example({"libcuda.so.535.261.03": "pipe"})
def test_a_driver_root_with_files_of_any_name_has_a_driver_or_none(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]
) -> None:
    root = tmp_path_factory.mktemp("root")
    folder = root / "usr/lib64"
    folder.mkdir(parents=True)
    for name, kind in files.items():
        path = folder / name
        match kind:
            case "folder":
                path.mkdir()
            case "link":
                path.symlink_to("libcuda.so.535.261.03")
            case "loop":
                path.symlink_to(name)
            case "pipe":
                os.mkfifo(path)
            case "file":
                path.write_bytes(b"\x7fELF")
            case "elf" | "odd soname":
                soname = "libcuda.so.1" if kind == "elf" else "lib{0.__class__}.so.1"
                path.write_bytes(driver_tree.elf(soname))
    found = fuzz.ours(lambda: find_driver_libraries(root, None))
    if isinstance(found, DriverLibraries):
        assert all(library.path.isascii() for library in found.libraries)
        assert all(link.target for link in found.links)
    else:
        assert isinstance(found, DeviceError)


@given(content=elves.flatmap(fuzz.broken))
@settings(deadline=None, suppress_health_check=NO_FIXTURE_CHECK, max_examples=examples(30))
def test_a_broken_nvml_library_cannot_be_loaded_and_that_is_said(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "libnvidia-ml.so.1"
    path.write_bytes(content[:64])  # cut, so that no loader ever maps or runs it
    found = fuzz.ours(NvmlLibrary(path).open)
    assert isinstance(found, DeviceError)
