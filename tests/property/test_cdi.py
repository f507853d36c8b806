"""CDI content for any driver root, and SONAMEs from any bytes.

The rules are written out here once more, apart from the code under test, from the CDI
specification: what is rendered is judged, not how.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import driver_tree
import make
from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.model import DeviceNode, Edits, Hook, Mount, Spec
from dra_driver.cdi.roots import Roots
from dra_driver.cdi.spec import claim_device_name, render
from dra_driver.cdi.store import SpecStore
from dra_driver.devices.driver_root.elf import read_soname
from dra_driver.errors import StateError
from sampling import examples

UID = "5c8f0b6a-0000-4000-8000-000000000000"
VERSION = "550.54.15"
FIELDS = {
    "spec": {"cdiVersion", "kind", "devices", "containerEdits"},
    "device": {"name", "containerEdits"},
    "edits": {"env", "deviceNodes", "mounts", "hooks", "additionalGids"},
    "deviceNodes": {
        *("path", "hostPath", "type", "major", "minor"),
        *("fileMode", "permissions", "gid"),
    },
    "mounts": {"hostPath", "containerPath", "options"},
    "hooks": {"hookName", "path", "args", "env"},
}

Json = Mapping[str, object]

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
numbers = st.none() | st.integers(min_value=-(2**33), max_value=2**64)
any_edits = st.builds(
    Edits,
    env=st.lists(texts | st.just("NAME=value"), max_size=2).map(tuple),
    device_nodes=st.lists(
        st.builds(
            DeviceNode,
            path=texts | st.just("/dev/nvidia0"),
            host_path=st.none() | texts,
            major=numbers,
            minor=numbers,
            file_mode=numbers,
            gid=numbers,
        ),
        max_size=2,
    ).map(tuple),
    mounts=st.lists(
        st.builds(
            Mount,
            host_path=texts | st.just("/a"),
            container_path=texts | st.just("/b"),
            options=st.just(("ro",)),
        ),
        max_size=2,
    ).map(tuple),
    hooks=st.lists(
        st.builds(
            Hook,
            hook_name=st.sampled_from(("createContainer", "createRuntime")),
            path=texts | st.just("/hook"),
        ),
        max_size=1,
    ).map(tuple),
    additional_gids=st.lists(st.integers(-1, 2**32), max_size=2).map(tuple),
)
any_spec = st.builds(
    Spec,
    devices=st.dictionaries(texts | st.sampled_from(("gpu-0", "0a")), any_edits, max_size=3),
    edits=any_edits,
)


def judge(document: Json) -> None:
    """Apply the rules of SPEC.md and of its Go loader to a spec, as JSON gives it."""
    assert set(document) <= FIELDS["spec"]
    assert re.fullmatch(r"[A-Za-z][\w.-]*[A-Za-z0-9]/[A-Za-z][\w.-]*[A-Za-z0-9]", document["kind"])  # type: ignore[call-overload]
    devices = document["devices"]
    assert isinstance(devices, list)
    assert devices
    names = [device["name"] for device in devices]
    assert len(set(names)) == len(names)
    for device in devices:
        assert set(device) == FIELDS["device"]
        assert re.fullmatch(r"[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?", device["name"], re.ASCII)
        assert device["containerEdits"]
        judge_edits(device["containerEdits"])
    judge_edits(document.get("containerEdits", {}))  # type: ignore[arg-type]
    assert document["cdiVersion"] == lowest_version(document)


def judge_edits(edits: Mapping[str, list[dict[str, object]]]) -> None:
    assert set(edits) <= FIELDS["edits"]
    for entry in edits.get("env", []):
        assert re.match(r"[^=]+=", str(entry), re.DOTALL)
    for kind in ("deviceNodes", "mounts", "hooks"):
        for entry in edits.get(kind, []):
            assert set(entry) <= FIELDS[kind]
            for field in ("path", "hostPath", "containerPath"):
                assert str(entry.get(field, "/")).startswith("/")
    for mount in edits.get("mounts", []):
        assert {"hostPath", "containerPath"} <= set(mount)
    for node in edits.get("deviceNodes", []):
        assert node.get("type", "c") in {"b", "c", "u", "p"}
        assert set(str(node.get("permissions", ""))) <= set("rwm")
    for gid in edits.get("additionalGids", []):
        assert 0 < int(str(gid)) < 2**32


def lowest_version(document: Json) -> str:
    text = json.dumps(document)
    if '"additionalGids"' in text:
        return "0.7.0"
    nodes = [
        node
        for part in (document, *document["devices"])  # type: ignore[misc]
        for node in part.get("containerEdits", {}).get("deviceNodes", [])
    ]
    if any("hostPath" in node for node in nodes):
        return "0.5.0"
    names = [device["name"] for device in document["devices"]]  # type: ignore[attr-defined]
    return "0.5.0" if any(name[0].isdigit() for name in names) else "0.3.0"


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
def test_what_is_rendered_keeps_the_rules_and_the_rest_is_refused(spec: Spec) -> None:
    try:
        document = render(spec)
    except StateError:
        return
    judge(json.loads(json.dumps(document)))


@given(any_spec)
def test_rendering_does_not_depend_on_the_order_of_devices(spec: Spec) -> None:
    turned = Spec(devices=dict(reversed(spec.devices.items())), edits=spec.edits)
    try:
        document = render(spec)
    except StateError:
        return
    assert render(turned) == document


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
