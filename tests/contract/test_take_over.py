"""`dra-driver take-over` as the init container of a driver's pod, and as people run it."""

import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.simulator.driver_root import Options
from worlds.nvidia import checkpoint
from worlds.nvidia_files import SEED, Left, entry_of, mended
from worlds.process import ProcessNode, TakeOverProcess, process_node

node = process_node()


def test_without_a_checkpoint_it_loads_and_touches_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from dra_driver.cli import main; "
        f"main(['take-over', '--kubelet-plugins-directory-path={tmp_path}']); "
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    said, modules = ran.stdout.decode().splitlines()
    assert said == f"nothing to take over: there is no {tmp_path}/gpu.nvidia.com/checkpoint.json"
    heavy = ("grpc", "pynvml", "urllib3", "structlog", "dra_driver.claims")
    assert not {name for name in modules.split() if name in heavy}
    assert not list(tmp_path.iterdir())


def test_a_plan_lists_each_claim_and_changes_nothing(node: ProcessNode) -> None:
    machine = node.install_gpus("h100x8", Options(userspace="stand-in", seed=SEED))
    left = Left("dynamic-mig")
    left.restore_machine(machine)
    claims, odd = left.prepared, left.refs["mig1"]
    entry_of(claims[odd.uid])["vfio"] = {}
    data = checkpoint(claims, boot_id=left.boot_id)
    left.restore_files(node.place.data, node.place.cdi_root, checkpoint=data)
    init = TakeOverProcess(node.driver)
    assert init.run("--plan") == 0
    lines = init.log.read_text().splitlines()
    said = {line for line in lines if "claim would be taken over" in line}
    for pod, device in {"whole": "gpu-0", "sliced": "gpu-2", "mig3": "gpu-1-mig-3g"}.items():
        (one,) = (line for line in said if left.refs[pod].uid in line)
        assert f"devices=['{device}" in one
    assert len(said) == 3
    (refused,) = (line for line in lines if "claim not taken over" in line)
    assert f"claim_uid={odd.uid}" in refused
    assert "it has a device of an unknown" in refused
    assert (node.place.data / "checkpoint.json").read_bytes() == data
    assert node.place.left_over() == sorted(path.name for path in (left.folder / "cdi").iterdir())


@pytest.mark.parametrize(("gates", "made"), [("DynamicMIG=true", 2), ("", 0)])
def test_mig_devices_of_unclear_origin_go_with_their_claims_only_if_a_setting_says_so(
    node: ProcessNode, gates: str, made: int
) -> None:
    machine = node.install_gpus("h100x8", Options(userspace="stand-in", seed=SEED))
    left = Left("dynamic-mig")
    left.restore_machine(machine)
    left.restore_files(node.place.data, node.place.cdi_root, checkpoint=mended(left))
    node.driver.env["FEATURE_GATES"] = gates
    init = TakeOverProcess(node.driver)
    assert init.run() == 0
    assert sum(one["mig_devices_made"] for one in init.events("claim taken over")) == made
