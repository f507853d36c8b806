"""CDI content for any driver root, and SONAMEs from any bytes.

What is rendered is judged by the rules of CDI (cdi_rules.py), not how.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import driver_tree
import make
from cdi_rules import judge
from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.model import Edits, Spec, claim_device_name, render
from dra_driver.cdi.roots import Roots
from dra_driver.cdi.store import SpecStore
from dra_driver.devices.driver_root.elf import read_soname
from sampling import examples

UID = "5c8f0b6a-0000-4000-8000-000000000000"
VERSION = "550.54.15"
file_names = st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20
).filter(lambda name: name not in {".", ".."} and not name.startswith("nvidia"))
tree_paths = st.builds(
    "/".join,
    st.tuples(
        st.sampled_from(
            (
                "usr/lib/x86_64-linux-gnu",
                "usr/lib/x86_64-linux-gnu/vdpau",
                "usr/lib64",
                "usr/bin",
                "etc/vulkan/icd.d",
                f"lib/firmware/nvidia/{VERSION}",
            )
        ),
        st.one_of(
            file_names,
            file_names.map(lambda stem: f"{stem}.so.{VERSION}"),
            st.sampled_from(("nvidia_icd.json", "gsp_ga10x.bin", "nvidia-debugdump")),
        ),
    ),
)
contents = st.one_of(
    st.binary(max_size=100), file_names.map(driver_tree.elf), st.just(driver_tree.elf(None))
)
texts = st.text(max_size=10)
any_spec = st.builds(
    Spec,
    devices=st.dictionaries(
        texts, st.builds(Edits, env=st.lists(texts, max_size=2).map(tuple)), min_size=1, max_size=3
    ),
)


@contextmanager
def a_driver_root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield driver_tree.driver_root(Path(folder) / "root")


def add(root: Path, path: str, content: bytes) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.write_bytes(content)
        file.chmod(0o755)


@settings(deadline=None, max_examples=examples(50))
@given(
    files=st.dictionaries(tree_paths, contents, max_size=6),
    hook_path=st.sampled_from(("", "/opt/nvidia-cdi-hook")),
    minors=st.sets(st.integers(0, 1), min_size=1),
)
def test_any_driver_root_gives_a_spec_that_runtimes_load(
    files: dict[str, bytes], hook_path: str, minors: set[int]
) -> None:
    with a_driver_root() as root:
        for path, content in files.items():
            add(root, path, content)
        roots = Roots(
            driver=root,
            driver_on_host=str(root),
            dev=root / "dev",
            dev_on_host=str(root / "dev"),
            proc=root / "proc",
            sys=root / "sys",
        )
        given_content = EditsCache(
            roots, hook_path=hook_path, kernel_release="6.8.0", clock=lambda: 0.0
        )
        spec = Spec(
            devices={
                claim_device_name(UID, f"gpu-{minor}"): given_content.look().device(
                    make.whole(make.gpu(minor))
                )
                for minor in sorted(minors)
            },
            edits=given_content.look().common,
        )
        SpecStore(root / "cdi").write(UID, spec)
        [written] = (root / "cdi").iterdir()
        document = json.loads(written.read_bytes())

        judge(document)
        for mount in document["containerEdits"]["mounts"]:
            assert Path(mount["hostPath"]).exists()


@given(any_spec)
def test_rendering_does_not_depend_on_the_order_of_devices(spec: Spec) -> None:
    turned = Spec(devices=dict(reversed(spec.devices.items())), edits=spec.edits)
    assert render(turned) == render(spec)


@settings(deadline=None)
@given(
    soname=st.none() | file_names,
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8),
    length=st.integers(0, 400),
)
def test_a_damaged_library_has_a_plausible_soname_or_none(
    soname: str | None, changes: list[tuple[int, int]], length: int
) -> None:
    content = bytearray(driver_tree.elf(soname))
    for position, value in changes:
        content[position % len(content)] = value
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library"
        library.write_bytes(content[:length])
        read = read_soname(library)

    assert read is None or (read and read.isascii() and "/" not in read and "\0" not in read)
