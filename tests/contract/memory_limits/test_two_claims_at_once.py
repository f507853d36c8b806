"""Two claims of one pod that are prepared at the same time."""

import time

from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import RecordState
from worlds.limited_node import LimitedNode, share


def test_a_claim_without_its_limit_yet_does_not_disturb_the_other(node: LimitedNode) -> None:
    pod, _ = node.pod()
    ref = node.claim_of(pod, share(0))
    node.driver.prepare(ref)
    claims = node.driver.claims
    record = claims.ledger.read(ref.uid)
    assert record is not None
    other = ClaimRef(namespace="default", name="other", uid=ClaimUid("other-uid"))
    claims.ledger.write(replace(record, ref=other, state=RecordState.PREPARING))
    claims.steps.wait(record.steps, time.monotonic(), lambda: False)
