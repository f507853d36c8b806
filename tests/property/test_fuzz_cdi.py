"""A CDI folder with files of any name and kind: claims' specs are written, listed and deleted."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzz
from dra_driver.cdi.model import DeviceNode, Edits, Spec
from dra_driver.cdi.store import SpecStore
from dra_driver.errors import StateError

UID = "11111111-0000-4000-8000-000000000000"
PREFIX = "k8s.gpu.nvidia.com-claim_"
SPEC = Spec(
    devices={"gpu-0": Edits(device_nodes=(DeviceNode(path="/dev/nvidia0"),))},
    edits=Edits(env=("NVIDIA_VISIBLE_DEVICES=void",)),
)


Make = Callable[[Path], object]
KINDS: dict[str, Make] = {
    "file": lambda path: path.write_bytes(b"{}"),
    "large file": lambda path: path.write_bytes(bytes(1 << 20)),
    "text of others": lambda path: path.write_text("cdiVersion: 0.5.0"),
    "folder": lambda path: path.mkdir(),
    "full folder": lambda path: (path.mkdir(), (path / "inside").touch()),
    "pipe": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a file that never ends": lambda path: path.symlink_to("/dev/zero"),
    "link to a folder": lambda path: path.symlink_to("/"),
}
NAMES = st.sampled_from(
    [
        f"{PREFIX}{UID}.json", f"{PREFIX}{UID}.yaml", f".{PREFIX}{UID}.json.tmp", f"{PREFIX}.json",
        f"{PREFIX}..json", f"{PREFIX}a b.json", f"{PREFIX}\udcff.json", f"{PREFIX}\n.json",
        f"{PREFIX}{'x' * 200}.json", f".{PREFIX}\udcfe.tmp", "nvidia.yaml", "\udcff", "-rf",
    ]
)  # fmt: skip


@given(files=st.dictionaries(NAMES, st.sampled_from(sorted(KINDS)), max_size=5))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.timeout(60)
def test_a_spec_is_written_or_refused_with_a_reason(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("cdi")
    for name, kind in files.items():
        KINDS[kind](folder / name)
    others = {name for name in files if UID not in name and not name.startswith(f".{PREFIX}")}
    store = SpecStore(folder)

    found = fuzz.ours(lambda: store.write(UID, SPEC))
    assert found is None or isinstance(found, StateError)
    assert store.exists(UID) in {True, False}
    if found is None:
        assert b"nvidia0" in (folder / f"{PREFIX}{UID}.json").read_bytes()
        assert not (folder / f"{PREFIX}{UID}.json").is_symlink()
    for uid in store.uids():
        gone = fuzz.ours(lambda uid=uid: store.delete(uid))  # type: ignore[misc]
        assert gone is None or isinstance(gone, StateError)
    assert store.delete_leftovers() >= 0
    left = set(os.listdir(folder))  # noqa: PTH208 (names are what is wanted)
    assert {name for name in others if not name.startswith(PREFIX)} <= left
