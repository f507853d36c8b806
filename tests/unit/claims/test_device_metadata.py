"""What is told of each kind of device, and where: as Kubernetes' reader of such files has it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

import device_metadata as reader
import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.prepare.device_metadata import (
    MetadataFiles,
    container_paths,
    documents,
    rendered,
)
from dra_driver.devices.device import Device, equal_shares, name_of
from dra_driver.devices.model import Gpu, MigMode, NvLink
from dra_driver.devices.nvlink import joined
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.errors import ConfigError, StateError
from dra_driver.slices.project import projection

UID = ClaimUid("11111111-0000-4000-8000-000000000000")
MIG = make.mig_device(0, start=2)
CARD = make.gpu(0, mig=make.mig(MIG), mig_mode=MigMode.ENABLED)
WHOLE = make.gpu(1)
MIG_DEVICE, GPU_DEVICE = make.device(MIG), make.device(WHOLE)
FOUR = Division(
    count=4, strategy=ShareStrategy.TIME_SLICING, served_as="nvidia.com/gpu", combines=False
)
PART = ConsumedShare(share_id="s1", strategy=ShareStrategy.TIME_SLICING, memory_mib=10240)

KINDS: Mapping[str, tuple[Gpu, Device, str]] = {
    "whole": (WHOLE, GPU_DEVICE, WHOLE.uuid),
    "MIG device": (CARD, MIG_DEVICE, MIG.uuid),
    "MIG device on demand": (CARD, make.device(replace(MIG, made_here=True)), MIG.uuid),
    "share": (WHOLE, equal_shares(GPU_DEVICE.base, FOUR)[2], WHOLE.uuid),
    "share of a MIG device": (CARD, equal_shares(MIG_DEVICE.base, FOUR)[1], MIG.uuid),
    "part by capacity": (WHOLE, replace(GPU_DEVICE, share=PART), WHOLE.uuid),
}


def entry(gpu: Gpu, device: Device, **changes: object) -> DeviceRecord:
    facts: dict[str, object] = {
        "name": name_of(gpu, device),
        "device": device,
        "pool": "node-1",
        "request_names": ("gpu",),
        "cdi_device_ids": ("k8s.gpu.nvidia.com/claim=x",),
    }
    return DeviceRecord(**(facts | changes))  # type: ignore[arg-type]


def record(*entries: DeviceRecord, **changes: object) -> ClaimRecord:
    found = entries or (entry(WHOLE, GPU_DEVICE),)
    return make.record(**({"devices": found, "pod_claim_name": "", "uid": UID} | changes))


def told(one: ClaimRecord, *gpus: Gpu) -> dict[str, str]:
    known = {gpu.uuid: gpu for gpu in gpus or (CARD, WHOLE)}
    inventory = make.inventory(*known.values())
    found = documents(one, known, inventory, joined(inventory.gpus))
    return {name: rendered(document, 1).decode() for name, document in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_is_described_as_in_its_slice_with_its_uuid(kind: str) -> None:
    gpu, device, uuid = KINDS[kind]
    (one,) = reader.devices(told(record(entry(gpu, device)))["gpu"])
    assert (one["driver"], one["pool"]) == ("gpu.nvidia.com", "node-1")
    assert one["name"] == name_of(gpu, device)
    attributes = one["attributes"]
    assert attributes["uuid"] == {"string": uuid}
    assert attributes["resource.kubernetes.io/pciBusID"] == {"string": gpu.pci_address}
    assert attributes["driverVersion"] == {"version": "535.261.3"}
    assert attributes["type"] == {"string": "mig" if "MIG" in kind else "gpu"}
    if "share" in kind:
        assert attributes["replicas"] == {"int": 4}


def test_the_attributes_are_those_of_the_slice() -> None:
    offered = projection(make.inventory(WHOLE)).devices
    (whole,) = (one for one in offered if one["name"] == "gpu-1")
    (one,) = reader.devices(told(record())["gpu"])
    assert one["attributes"] == whole["attributes"]


def test_the_nvlink_group_of_a_gpu_is_included() -> None:
    links = (NvLink(number=0, is_active=True, to_switch=True),)
    pair = [make.gpu(number, nvlinks=links) for number in (1, 2)]
    (one,) = reader.devices(told(record(entry(pair[1], make.device(pair[1]))), *pair)["gpu"])
    assert one["attributes"]["nvlinkIsland"] == {"string": pair[0].uuid}


def test_both_versions_have_the_same_content() -> None:
    newest, oldest = reader.objects(told(record())["gpu"])
    assert newest.pop("apiVersion") == "metadata.resource.k8s.io/v1beta1"
    assert oldest.pop("apiVersion") == "metadata.resource.k8s.io/v1alpha1"
    assert newest == oldest
    assert newest["metadata"] == {
        "name": "claim",
        "namespace": "default",
        "uid": UID,
        "generation": 1,
    }
    assert reader.read(told(record())["gpu"], known=["v1alpha1"])["kind"] == "DeviceMetadata"


def test_a_claim_that_its_pod_names_is_found_by_its_name() -> None:
    one = record(pod_claim_name="")
    assert container_paths(one) == {"gpu": reader.by_claim("claim", "gpu")}
    assert "podClaimName" not in reader.read(told(one)["gpu"])


def test_a_claim_from_a_template_is_found_by_what_its_pod_calls_it() -> None:
    one = record(pod_claim_name="gpus")
    assert container_paths(one) == {"gpu": reader.by_template("gpus", "gpu")}
    assert reader.read(told(one)["gpu"])["podClaimName"] == "gpus"


def test_each_request_has_a_file_and_a_chosen_sub_request_is_in_it_but_not_in_the_path() -> None:
    one = record(
        entry(WHOLE, GPU_DEVICE, request_names=("large",), subrequest="h100"),
        entry(CARD, MIG_DEVICE, request_names=("small",)),
    )
    assert container_paths(one) == {
        "large": reader.by_claim("claim", "large"),
        "small": reader.by_claim("claim", "small"),
    }
    found = {name: reader.read(data)["requests"] for name, data in told(one).items()}
    assert [one["name"] for one in found["large"]] == ["large/h100"]
    assert [one["name"] for one in found["small"]] == ["small"]
    assert [device["name"] for device in found["small"][0]["devices"]] == ["gpu-0-mig-1g10gb-19-2"]


def test_all_devices_of_a_request_are_in_its_file_in_their_order() -> None:
    other = make.gpu(2)
    found = told(record(entry(other, make.device(other)), entry(WHOLE, GPU_DEVICE)), other, WHOLE)
    assert [device["name"] for device in reader.devices(found["gpu"])] == ["gpu-2", "gpu-1"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a/../b", "a..b", "../../etc", "A", "a\n"])
def test_a_claim_whose_name_the_api_would_refuse_is_not_mounted_anywhere(name: str) -> None:
    ref = ClaimRef(uid=UID, namespace="default", name=name)
    assert container_paths(replace(record(), ref=ref)) == {}


@pytest.mark.parametrize("name", ["..", "a/b", "", "a.b", "a" * 64, "-a", "a\0"])
def test_a_request_whose_name_the_api_would_refuse_has_no_file(name: str) -> None:
    one = record(entry(WHOLE, GPU_DEVICE, request_names=(name,)))
    assert container_paths(one) == told(one) == {}


DOCUMENT = {"metadata": {"name": "claim", "namespace": "n", "uid": UID}, "a": 1}
NEWER = {**DOCUMENT, "a": 2}


@pytest.fixture
def files(tmp_path: Path) -> MetadataFiles:
    return MetadataFiles(tmp_path / "plugin")


def generation(path: Path) -> int:
    found = {one["metadata"]["generation"] for one in reader.objects(path.read_text())}
    (only,) = found
    assert isinstance(only, int)
    return only


def test_a_file_is_for_every_user_and_is_left_alone_when_it_says_the_same(
    files: MetadataFiles,
) -> None:
    files.write(UID, {"gpu": DOCUMENT})
    path = Path(files.path(UID, "gpu"))
    before = path.stat()
    assert before.st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    path.chmod(0o600)
    files.write(UID, {"gpu": DOCUMENT})
    assert (path.stat().st_ino, path.stat().st_mode & 0o777) == (before.st_ino, 0o644)


def test_a_change_makes_a_new_file_of_a_higher_generation(files: MetadataFiles) -> None:
    files.write(UID, {"gpu": DOCUMENT})
    path = Path(files.path(UID, "gpu"))
    with path.open() as kept:  # as a container has it, mounted by itself
        files.write(UID, {"gpu": NEWER})
        files.write(UID, {"gpu": NEWER})
        assert generation(path) == 2
        assert next(reader.objects(kept.read()))["a"] == 1
    assert next(reader.objects(path.read_text()))["a"] == 2
    files.write(UID, {"gpu": DOCUMENT})
    assert generation(path) == 3


@pytest.mark.parametrize("data", [b"", b"\0" * 9, b'{"generation": 99999999999999999999}', b"{"])
def test_a_file_that_somebody_has_damaged_is_written_again(
    files: MetadataFiles, data: bytes
) -> None:
    files.write(UID, {"gpu": DOCUMENT})
    path = Path(files.path(UID, "gpu"))
    path.write_bytes(data)
    files.write(UID, {"gpu": DOCUMENT})
    assert generation(path) == 2
    assert next(reader.objects(path.read_text()))["a"] == 1


@pytest.mark.parametrize("depth", range(3))
@pytest.mark.parametrize("kind", ["file", "link", "folder", "nothing"])
def test_files_in_the_way_are_replaced(files: MetadataFiles, kind: str, depth: int) -> None:
    path = Path(files.path(UID, "gpu"))
    place = [path, path.parent, path.parent.parent][depth]
    elsewhere = path.parents[3] / "elsewhere"
    elsewhere.mkdir(parents=True)
    (elsewhere / "kept").touch()
    if kind == "folder":
        (place / "x").mkdir(parents=True)
    elif kind != "nothing":
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch() if kind == "file" else place.symlink_to(elsewhere)
    files.write(UID, {"gpu": DOCUMENT})
    assert next(reader.objects(path.read_text()))["a"] == 1
    assert not path.is_symlink()
    assert not path.parent.is_symlink()
    files.delete(UID)
    assert not path.parent.exists()
    assert [one.name for one in elsewhere.iterdir()] == ["kept"]


@pytest.mark.parametrize("kind", ["file", "link", "nothing"])
def test_any_remains_of_a_claim_can_be_deleted(files: MetadataFiles, kind: str) -> None:
    folder = Path(files.path(UID, "gpu")).parent
    elsewhere = folder.parents[2] / "elsewhere"
    elsewhere.mkdir(parents=True)
    (elsewhere / "kept").touch()
    folder.parent.mkdir(parents=True)
    if kind != "nothing":
        folder.touch() if kind == "file" else folder.symlink_to(elsewhere)
        assert files.uids() == {UID}
    files.delete(UID)
    files.delete(UID)
    assert files.uids() == set()
    assert (elsewhere / "kept").exists()


def test_claims_are_known_by_their_folders_and_other_names_passed_over(
    files: MetadataFiles, tmp_path: Path
) -> None:
    assert files.uids() == set()
    files.write(UID, {})
    (tmp_path / "plugin" / "device-metadata" / ".hidden").touch()
    assert files.uids() == {UID}
    with pytest.raises(ConfigError):
        files.path(ClaimUid("../x"), "gpu")


def test_an_unreadable_folder_does_not_count_as_empty(tmp_path: Path) -> None:
    folder = tmp_path / "device-metadata"
    folder.symlink_to(folder)
    files = MetadataFiles(tmp_path)
    with pytest.raises(StateError, match=f"cannot read device metadata {folder}: Too many levels"):
        files.uids()
    files.write(UID, {})
    assert files.uids() == {UID}, "who writes puts a folder in its place"
