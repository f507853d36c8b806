"""What doctor reports on damaged records, and on MIG devices that nothing will destroy."""

import pytest

from dra_driver.admin.doctor.checks import node_checks
from dra_driver.admin.stored import stored_records
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from worlds.node import Node


@pytest.mark.parametrize("rest", [b"", b"\0" * 100], ids=["cut off", "all zeros"])
def test_a_mig_device_of_a_damaged_record_is_named_with_what_to_type(
    node: Node, rest: bytes
) -> None:
    def said() -> list[str]:
        seen = node_checks.damaged(stored_records(node.driver.plugin), node.session.look())
        return [f"{one.text}: {one.advice}" if one.advice else one.text for one in seen]

    assert said() == ["all records of claims can be read"]
    claims = [node.claim(node.name("1g.10gb", place), name=f"c{place}") for place in (0, 2)]
    for ref in claims:
        node.driver.prepare(ref)
    path = node.driver.plugin / "claims" / f"{claims[1].uid}.json"
    path.write_bytes(rest or path.read_bytes()[:-9])
    node.driver.reconciler(ReconcileTiming()).mend()
    record, device = said()
    assert record.startswith(f"the record {path.name} of a claim is damaged: it is cut off, or not")
    (gpu,) = (gpu for gpu in node.session.look().gpus if gpu.mig_instances)
    (lost,) = (one for one in gpu.mig_instances if one.placement.start == 2)
    typed = f"nvidia-smi mig -i {gpu.index} -gi {lost.gpu_instance}"
    assert f"GPU {gpu.index} has 1g.10gb at 2" in device
    assert f"run `{typed} -dci`, then `{typed} -dgi`, and" in device
