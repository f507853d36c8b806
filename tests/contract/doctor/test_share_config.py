"""What doctor says of share configs: those of the cluster's ConfigMap, and what a driver noted."""

from pathlib import Path

import pytest
import yaml
from testbed import manifests
from testbed.apiserver.server import ApiServer

from charts import Object
from doctored import NAMESPACE, Doctor, daemon_pod, put, put_node
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.shares.notes import ShareNotes, write_notes

DRIVER, _ = manifests.installed("DaemonSet")
LABEL = "nvidia.com/device-plugin.config"
WHERE = f"ConfigMap {NAMESPACE}/share-configs"
SLICED = "timeSlicing, 4 of each nvidia.com/gpu"
MPS = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n"
SLICES = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
BROKEN = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: ten}]}}\n"
HALF = "version: v1\nsharing: {mps: [\n"


def config_map(**data: str) -> Object:
    meta = {"name": "share-configs", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def node(api: ApiServer, name: str, **labels: str) -> None:
    put_node(api, name, **labels)
    api.put(daemon_pod(DRIVER, name))


def test_each_nodes_config_is_reported(well: ApiServer, doctor: Doctor) -> None:
    well.put(config_map(default=MPS, slices=SLICES))
    node(well, "node-2", **{LABEL: "slices"})
    assert doctor.told("share-config") == [
        (
            "ok",
            f'share config "default" of {WHERE}, used by node-1: mps, 10 of each nvidia.com/gpu',
            "",
        ),
        ("ok", f'share config "slices" of {WHERE}, used by node-2: {SLICED}', ""),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [(BROKEN, "default:2:52: sharing.mps.resources[0].replicas"), (HALF, "default:3:1: ")],
)
def test_a_wrong_config_is_reported_as_by_validate(
    well: ApiServer, doctor: Doctor, text: str, words: str
) -> None:
    well.put(config_map(default=text, slices=SLICES))
    wrong, fine = doctor.told("share-config", 1)
    assert wrong[0] == "error"
    assert f'"default" of {WHERE}, used by node-1, cannot be used: {words}' in wrong[1]
    assert "offers no GPU" in wrong[2]
    assert fine[:2] == (
        "ok",
        f'share config "slices" of {WHERE}, used by no node: timeSlicing, 4 of each nvidia.com/gpu',
    )


def test_a_label_without_config_is_reported_with_its_nodes(well: ApiServer, doctor: Doctor) -> None:
    well.put(config_map(default=MPS))
    node(well, "node-2", **{LABEL: "mpss"})
    node(well, "node-3", **{LABEL: "mpss"})
    (first, _) = doctor.told("share-config", 1)
    assert first[0] == "error"
    assert first[1].startswith(f'node-2, node-3: label {LABEL}: no config "mpss" in {WHERE}')
    assert "it has default" in first[1]
    assert f"kubectl label node NODE --overwrite {LABEL}=NAME" in first[2]


def test_nodes_without_one_of_several_configs_are_named(well: ApiServer, doctor: Doctor) -> None:
    well.put(config_map(mps=MPS, slices=SLICES))
    severity, seen, _ = doctor.told("share-config")[-1]
    assert severity == "info"
    assert seen.startswith(
        f"nothing is shared on node-1: they have no label {LABEL}, and no config"
    )
    assert seen.endswith(f'of {WHERE} is named "default"')


@pytest.mark.parametrize(("there", "severity"), [(True, "ok"), (False, "error")])
def test_settings_of_the_chart_apply(
    well: ApiServer, doctor: Doctor, there: bool, severity: str
) -> None:
    own = yaml.safe_load(yaml.safe_dump(well.objects("daemonsets")[0]))
    pod = own["spec"]["template"]["spec"]
    pod["containers"][0]["env"].append({"name": "SHARE_CONFIG_DEFAULT", "value": "slices"})
    (volume,) = (one["configMap"] for one in pod["volumes"] if one["name"] == "share-configs")
    volume |= {"name": "own", "optional": False}
    put(well, own)
    if there:
        configs = config_map(mps=MPS, slices=SLICES)
        configs["metadata"]["name"] = "own"
        well.put(configs)
    seen = doctor.told("share-config", (0 if there else 1))
    assert seen[-1][0] == severity
    if there:
        assert f'"slices" of ConfigMap {NAMESPACE}/own, used by node-1' in seen[-1][1]


def test_missing_rights_to_the_configmap_are_reported(well: ApiServer, doctor: Doctor) -> None:
    well.fail("get", "configmaps", status=403, message="forbidden by RBAC", times=9)
    ((severity, _, advice),) = doctor.told("share-config")
    assert severity == "unknown"
    assert "admin's kubeconfig" in advice


def test_on_a_node_the_drivers_own_notes_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "plugins" / DRIVER_NAME
    folder.mkdir(parents=True)
    words = ["doctor", "--scope=node", "-o", "json"]
    words += [f"--kubelet-plugins-directory-path={folder.parent}"]
    notes = ShareNotes(origin="file /a", problem="/a:3:5: no", remarks=("flags: no meaning",))
    write_notes(folder, notes)
    doctor = Doctor(words, capsys)
    problem, remark = doctor.told("share-config", 1)
    assert problem[0] == "error"
    assert problem[1].endswith("newest share config: /a:3:5: no; file /a is in use")
    assert remark[:2] == ("info", "on this node: flags: no meaning")
    write_notes(folder, ShareNotes(origin="file /a", remarks=("a",)))
    assert doctor.told("share-config", 1)[0][:2] == ("ok", "this node's driver uses file /a")
