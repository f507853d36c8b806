"""What doctor finds of claims that are gone: records, the kubelet and control groups of a node."""

from pathlib import Path

import make
from dra_driver.admin.doctor.facts.gone_claims import GoneFacts, gone_claims
from dra_driver.admin.doctor.facts.places import Places
from dra_driver.cdi.roots import Roots
from dra_driver.devices.names import DRIVER_NAME
from worlds.driver import Driver
from worlds.kubelet_pods import serving_pods


def test_a_gone_claim_is_reported_with_the_pod_that_has_it(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    driver = Driver(tmp_path / "node", *(make.gpu(minor) for minor in range(4)))
    refs = [driver.api.add(f"gpu-{n}", uid=f"uid-{n}", name=f"claim-{n}") for n in range(3)]
    for ref in refs:
        driver.prepare(ref)
    plugins.mkdir()
    (plugins / DRIVER_NAME).symlink_to(driver.plugin)
    groups = tmp_path / "cgroup"
    (groups / "kubepods").mkdir(parents=True)
    (groups / "cgroup.controllers").touch()
    (tmp_path / "proc").mkdir()
    roots = Roots(
        driver=tmp_path,
        driver_on_host="/",
        dev=tmp_path,
        dev_on_host="/dev",
        proc=tmp_path / "proc",
    )
    places = Places(
        roots=roots,
        host=None,
        plugins=plugins,
        registrar=tmp_path,
        cdi_root=tmp_path,
        cgroup_root=groups,
    )
    there = {refs[0].uid}

    def found() -> GoneFacts:
        return gone_claims(
            places,
            driver.gpus.inventory,
            lambda record: None if record.ref.uid in there else "no longer exists",
        )

    told = {("team", "train"): ["k8s.gpu.nvidia.com/claim=uid-1-gpu-1"]}
    with serving_pods(plugins, told):
        assert found() == GoneFacts(
            why_unknown=None,
            kept={
                "default/claim-1 no longer exists": "the kubelet still runs it in pod team/train"
            },
            ended=("default/claim-2, which no longer exists",),
        )
    facts = found()
    assert facts.why_unknown is not None
    assert "PodResources API is not at" in facts.why_unknown
    assert len(facts.kept) == 2
