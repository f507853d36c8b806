"""Files with device metadata on disk: there before the spec that mounts them, and gone after it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from testbed.disk import SmallDisk

import device_metadata as reader
import make
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.prepare.device_metadata import MetadataFiles
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.devices.model import NvLink
from dra_driver.errors import StateError
from worlds.driver import Driver
from worlds.process import eventually

ANNOTATION = "resource.kubernetes.io/pod-claim-name"


def mounted(driver: Driver, ref: ClaimRef) -> dict[str, dict[str, Path]]:
    """What a runtime mounts of device metadata, by CDI device: files by container path."""
    found: dict[str, dict[str, Path]] = {}
    for device in driver.spec(ref)["devices"]:
        for mount in device["containerEdits"].get("mounts", ()):
            assert mount["options"] == ["ro", "nosuid", "nodev", "noexec", "bind"]
            path = Path(mount["hostPath"])
            assert path.is_file()
            found.setdefault(device["name"], {})[mount["containerPath"]] = path
    return found


def of_template(driver: Driver, *devices: str, said: str = "gpus", **facts: Any) -> ClaimRef:
    """A claim that a pod calls so."""
    ref = driver.api.add(*devices, **facts)
    metadata = driver.api.claims[ref.namespace, ref.name]["metadata"]
    metadata["annotations"] = {ANNOTATION: said}
    return ref


def file_of(driver: Driver, ref: ClaimRef, request: str = "gpu") -> Path:
    return driver.plugin / "device-metadata" / ref.uid / f"{request}.json"


def test_a_container_finds_the_devices_of_its_requests(driver: Driver) -> None:
    ref = of_template(driver, "gpu-1", "gpu-2", "gpu-3", requests=["a", "b/large", "a"])
    driver.prepare(ref)
    first, second = mounted(driver, ref).items()
    assert first == (
        f"{ref.uid}-gpu-1",
        {reader.by_template("gpus", "a"): file_of(driver, ref, "a")},
    )
    assert second == (
        f"{ref.uid}-gpu-2",
        {reader.by_template("gpus", "b"): file_of(driver, ref, "b")},
    )
    both = reader.devices(file_of(driver, ref, "a").read_text())
    assert [one["name"] for one in both] == ["gpu-1", "gpu-3"]
    found = reader.read(file_of(driver, ref, "b").read_text())
    assert [request["name"] for request in found["requests"]] == ["b/large"]
    assert (found["metadata"]["uid"], found["podClaimName"]) == (ref.uid, "gpus")
    driver.unprepare(ref)
    assert driver.left() == []
    assert list((driver.plugin / "device-metadata").iterdir()) == []


def test_one_device_in_two_requests_brings_the_files_of_both(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", "gpu-1", requests=["mine", "seen"])
    driver.api.results(ref)[1]["adminAccess"] = True
    driver.prepare(ref)
    (found,) = mounted(driver, ref).values()
    assert found.keys() == {reader.by_claim("claim", name) for name in ("mine", "seen")}


def test_an_annotation_that_names_another_place_is_not_believed(driver: Driver) -> None:
    ref = of_template(driver, "gpu-1", said="../../../../etc")
    driver.prepare(ref)
    (found,) = mounted(driver, ref).values()
    assert found.keys() == {reader.by_claim("claim", "gpu")}


def test_when_disabled_no_files_are_made_and_old_ones_go_with_claims(driver: Driver) -> None:
    ref, later = driver.api.add("gpu-1"), driver.api.add("gpu-2", uid="later", name="later")
    driver.prepare(ref)
    off = Driver(driver.root, api=driver.api, device_metadata=False)
    off.prepare(later)
    assert mounted(off, later) == {}
    assert not file_of(off, later).exists()
    assert not off.reconciler(ReconcileTiming()).mend()
    assert mounted(off, ref) == {}
    assert file_of(off, ref).exists()  # containers may just be starting with it
    assert off.reconciler(ReconcileTiming()).mend_unfinished() == set()
    off.unprepare(ref)
    off.unprepare(later)
    assert off.left() == []
    off.close()


def test_enabling_metadata_also_serves_prepared_claims(driver: Driver) -> None:
    off = Driver(driver.root, api=driver.api, device_metadata=False)
    ref = of_template(off, "gpu-1")
    off.prepare(ref)
    off.close()
    assert not driver.reconciler(ReconcileTiming()).mend()
    (found,) = mounted(driver, ref).values()
    assert found.keys() == {reader.by_template("gpus", "gpu")}


def test_files_that_somebody_deleted_are_written_again_by_the_running_thread(
    driver: Driver,
) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    reconciler = driver.reconciler(ReconcileTiming(retry=0.05))
    reconciler.start()
    try:
        for lost in ("device-metadata", f"device-metadata/{ref.uid}"):
            # The thread may be writing there again already.
            rmtree(driver.plugin / lost, ignore_errors=True)
            eventually(lambda: file_of(driver, ref).exists(), "the file to be back")
        file_of(driver, ref).unlink()
        eventually(lambda: file_of(driver, ref).exists(), "the file to be back")
    finally:
        reconciler.stop(10)


def test_a_repeated_prepare_brings_back_what_is_lost(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    answer = driver.prepare(ref)
    file_of(driver, ref).unlink()
    assert driver.prepare(ref) == answer
    assert reader.devices(file_of(driver, ref).read_text())
    assert mounted(driver, ref)


def test_files_without_a_record_go_with_the_next_start(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    (driver.plugin / "claims" / f"{ref.uid}.json").unlink()
    assert driver.reconciler(ReconcileTiming()).mend() == {ref.uid}
    assert file_of(driver, ref).exists(), "its spec mounts it, and may be in use"
    driver.specs.delete(ref.uid)
    (driver.plugin / "device-metadata" / "gone").mkdir()
    (driver.plugin / "device-metadata" / "a-file").touch()
    assert not driver.reconciler(ReconcileTiming()).mend()
    assert list((driver.plugin / "device-metadata").iterdir()) == []


def test_a_claim_with_a_reused_name_sees_no_old_files(driver: Driver) -> None:
    former = driver.api.add("gpu-1", uid="former")
    driver.prepare(former)
    ref = driver.api.add("gpu-2", uid="next")
    driver.prepare(ref)
    ((path, file),) = mounted(driver, ref)["next-gpu-2"].items()
    assert path == reader.by_claim("claim", "gpu")
    assert [device["name"] for device in reader.devices(file.read_text())] == ["gpu-2"]
    driver.unprepare(former)
    assert file.exists()


def test_a_newer_gpu_driver_shows_only_in_later_containers(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    with file_of(driver, ref).open() as kept:
        driver.gpus.inventory = replace(driver.gpus.inventory, driver_version="580.1.2")
        assert not driver.reconciler(ReconcileTiming()).mend()
        found = [reader.read(data) for data in (kept.read(), file_of(driver, ref).read_text())]
    assert [one["metadata"]["generation"] for one in found] == [1, 2]
    versions = [
        one["requests"][0]["devices"][0]["attributes"]["driverVersion"]["version"] for one in found
    ]
    assert versions == ["535.261.3", "580.1.2"]


def test_a_lost_nvlink_group_shows_only_in_later_containers(tmp_path: Path) -> None:
    links = (NvLink(number=0, is_active=True, to_switch=True),)
    pair = [make.gpu(number, nvlinks=links) for number in (1, 2)]
    driver = Driver(tmp_path, *pair)
    ref = driver.api.add("gpu-2")
    driver.prepare(ref)

    def island() -> object:
        (one,) = reader.devices(file_of(driver, ref).read_text())
        return one["attributes"].get("nvlinkIsland")

    assert island() == {"string": pair[0].uuid}
    driver.gpus.inventory = make.inventory(pair[1])
    driver.prepare(ref)
    assert island() is None
    driver.close()


def test_an_unchanged_scan_writes_nothing(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    before = file_of(driver, ref).stat()
    driver.gpus.inventory = replace(driver.gpus.inventory)
    driver.prepare(ref)
    assert file_of(driver, ref).stat().st_ino == before.st_ino


# A disk that is full


@pytest.fixture
def disk(tmp_path: Path, small_disk: Callable[[Path], SmallDisk]) -> SmallDisk:
    """The disk on which the driver's directory is."""
    return small_disk(tmp_path / "plugin")


@pytest.fixture
def filling(disk: SmallDisk, tmp_path: Path) -> Iterator[Callable[[str], Driver]]:
    """Start a driver whose disk is full from the moment on at which a step is done."""
    worlds: list[Driver] = []

    def start(at: str) -> Driver:
        def step(name: str) -> None:
            if name == at:
                disk.fill()

        worlds.append(Driver(tmp_path, step=step))
        return worlds[-1]

    yield start
    for world in worlds:
        world.close()


def test_a_claim_on_a_full_disk_fails_with_the_reason_and_recovers(
    disk: SmallDisk, filling: Callable[[str], Driver]
) -> None:
    driver = filling("recorded")
    ref = driver.api.add("gpu-1")
    for _ in range(2):
        with pytest.raises(StateError, match=r"cannot write device metadata .*No space left"):
            driver.prepare(ref)
        assert not driver.specs.exists(ref.uid), "it would mount what is not there"
    disk.empty()
    driver.prepare(ref)
    assert mounted(driver, ref)


def test_a_claim_that_never_got_its_files_is_unprepared_on_a_full_disk(
    disk: SmallDisk, filling: Callable[[str], Driver]
) -> None:
    driver = filling("recorded")
    ref = driver.api.add("gpu-1")
    with pytest.raises(StateError, match="check the free space"):
        driver.prepare(ref)
    driver.unprepare(ref)
    disk.empty()
    assert driver.left() == []


def test_on_a_full_disk_a_prepared_claim_keeps_the_file_that_it_has(
    disk: SmallDisk, filling: Callable[[str], Driver]
) -> None:
    driver = filling("never")
    ref = driver.api.add("gpu-1")
    answer = driver.prepare(ref)
    disk.fill()
    driver.gpus.inventory = make.inventory(make.gpu(1), driver_version="580.1.2")
    with capture_logs() as logs:
        assert driver.prepare(ref) == answer
    assert "device metadata left as it was" in [log["event"] for log in logs]
    (one,) = reader.devices(file_of(driver, ref).read_text())
    assert one["attributes"]["driverVersion"] == {"version": "535.261.3"}
    disk.empty()
    driver.prepare(ref)
    assert "580.1.2" in file_of(driver, ref).read_text()


def test_on_a_disk_that_nobody_may_write_to_files_are_deleted_later(
    disk: SmallDisk, tmp_path: Path
) -> None:
    files = MetadataFiles(tmp_path / "plugin")
    driver = Driver(tmp_path)
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    with disk.read_only(), pytest.raises(StateError, match="cannot delete device metadata"):
        files.delete(ref.uid)
    driver.unprepare(ref)
    assert files.uids() == set()
    driver.close()
