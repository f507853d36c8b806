"""`dra-driver explain` names pods that have devices and are refused, or have too much memory."""

import json
from typing import Any

import pytest

from dra_driver.usage.over_limit import KILLED, OVER
from explained import Command, Object, claim, classes, event, gpus, having, node, pod, request

REFUSED = "FailedPrepareDynamicResources"
WHY = (
    "Failed to prepare dynamic resources: NodePrepareResources failed for ResourceClaim theirs: "
    "request gpu asks for 2 of nvidia.com/gpu; ask for 1"
)
OF = "train-0"
LINE = f"  * pod default/{OF}: {WHY}\n    -> delete such a pod, or do what its reason says"


def holder(phase: str = "Pending") -> Object:
    found = pod("theirs", name=OF, nodeName="node-1")
    found["status"] = {"phase": phase}
    return found


TAKEN = [node(), *classes(), *gpus(), having("gpu-0", "gpu-1"), claim(), pod("wanted")]


def test_a_holder_that_is_refused_is_named_with_its_newest_reason(command: Command) -> None:
    older = event(REFUSED, "an older reason", of=OF, seen=1)
    said = command.says(*TAKEN, holder(), event(REFUSED, WHY, of=OF, seen=2), older)
    assert f"Has devices, but does not start:\n{LINE}" in said
    shown = json.loads(command.says(flags="-o json"))
    assert shown["refused"] == [{"pod": f"default/{OF}", "why": WHY}]
    # The pod itself and its claim have an exit status of their own.
    for of in (f"pod {OF}", "claim theirs"):
        assert LINE in command.says(of=of, status=3)
    # It is not in the way of who would get nothing without it.
    nobody = claim(request(device_class="nobody.example.com"), name="wrong")
    said = command.says(nobody, pod("wrong", name="second"), of="pod second")
    assert "the DeviceClass nobody.example.com" in said
    assert "does not start" not in said


@pytest.mark.parametrize(
    "things",
    [
        [holder(), event(REFUSED, WHY, of=OF, uid="of-an-earlier-pod")],
        [holder("Running"), event(REFUSED, WHY, of=OF)],
        [holder(), event(REFUSED, WHY, of="other")],
        [event(REFUSED, WHY, of=OF)],
        [holder()],
    ],
    ids=["earlier pod", "runs", "other pod", "gone", "no event"],
)
def test_other_claims_are_not_reported_as_refused(command: Command, things: list[Object]) -> None:
    assert "does not start" not in command.says(*TAKEN, *things)


HAD = (
    "container ctr had 31000 MiB of gpu-0, and its limit is 8100 MiB; its processes were ended. "
    "Let the program use less memory, or ask for more of the GPU"
)


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_a_pod_gets_the_last_report_of_memory_over_its_limit(command: Command, phase: str) -> None:
    said = command.says(
        *TAKEN,
        holder(phase),
        event(OVER, "it has too much", of=OF, seen=3),
        event(KILLED, HAD, of=OF, seen=9),
        event(KILLED, "an earlier pod", of=OF, uid="earlier", seen=11),
        of=f"pod {OF}",
        status=0,
    )
    assert said.endswith(f"Used more GPU memory than its limit:\n  * 2026-11-26T10:00:09Z: {HAD}\n")
    shown: dict[str, Any] = json.loads(command.says(of=f"pod {OF}", status=0, flags="-o json"))
    assert shown["memoryOverLimit"].endswith(HAD)
    assert "more GPU memory" not in command.says()


def test_a_claim_gets_reports_of_its_memory(command: Command) -> None:
    theirs = having("gpu-0", "gpu-1")
    about = event(KILLED, HAD, of="theirs", uid=theirs["metadata"]["uid"])
    about["regarding"]["kind"] = "ResourceClaim"
    things = (node(), *classes(), *gpus(), theirs, holder("Running"), about)
    assert HAD in command.says(*things, of="claim theirs", status=0)
