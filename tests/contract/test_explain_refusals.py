"""`dra-driver explain` names pods that have devices and are refused, or have too much memory."""

import json
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer

from dra_driver.cli import main
from dra_driver.usage.over_limit import KILLED, OVER
from explained import Object, claim, classes, gpus, having, node, pod

WHY = (
    "Failed to prepare dynamic resources: NodePrepareResources failed for ResourceClaim theirs: "
    "request gpu asks for 2 of nvidia.com/gpu; ask for 1"
)
REFUSED = f"  * pod default/train-0: {WHY}"


def event(
    uid: str = "pod-uid",
    *,
    name: str = "train-0",
    note: str = WHY,
    second: int = 0,
    reason: str = "FailedPrepareDynamicResources",
) -> Object:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{second}", "namespace": "default"},
        "type": "Warning",
        "reason": reason,
        "note": note,
        "regarding": {"kind": "Pod", "namespace": "default", "name": name, "uid": uid},
        "deprecatedLastTimestamp": f"2026-01-01T00:00:{second:02}Z",
    }


def holder(phase: str = "Pending") -> Object:
    found = pod("theirs", name="train-0", nodeName="node-1")
    found["metadata"]["uid"] = "pod-uid"
    found["status"] = {"phase": phase}
    return found


TAKEN = [node(), *classes(), *gpus(), having("gpu-0", "gpu-1"), claim(), pod("wanted")]


def explain(
    api: ApiServer,
    folder: Path,
    *things: Object,
    of: str = "pod train",
    flags: tuple[str, ...] = (),
) -> int | str | None:
    api.delete_all("nodes")
    api.put(*things)
    return main(
        ["explain", *of.split(), f"--kubeconfig={api.write_kubeconfig(folder / 'k')}", *flags]
    )


def test_a_holder_that_is_refused_is_named_with_its_newest_reason(
    api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = event(note="an older reason", second=1)
    assert explain(api, tmp_path, *TAKEN, holder(), event(second=2), older) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("Has devices and does not start:")
    assert lines[at + 1] == REFUSED
    assert lines[at + 2].startswith("    -> delete such a pod, or do what its reason says")


@pytest.mark.parametrize("of", ["pod train-0", "claim theirs"])
def test_the_pod_itself_and_its_claim_are_told_of_it(
    api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], of: str
) -> None:
    assert explain(api, tmp_path, *TAKEN, holder(), event(), of=of) == 3
    assert REFUSED in capsys.readouterr().out


def test_programs_are_told_of_it(
    api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(api, tmp_path, *TAKEN, holder(), event(), flags=("-o", "json")) == 1
    refused = json.loads(capsys.readouterr().out)["refused"]
    assert refused == [{"pod": "default/train-0", "why": WHY}]


@pytest.mark.parametrize(
    "things",
    [
        [holder(), event("of-an-earlier-pod")],
        [holder("Running"), event()],
        [holder(), event(name="other")],
        [event()],
        [holder()],
    ],
    ids=["earlier pod", "runs", "other pod", "gone", "no event"],
)
def test_others_are_not_told_to_be_refused(
    api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], things: list[Object]
) -> None:
    assert explain(api, tmp_path, *TAKEN, *things) == 1
    assert "does not start" not in capsys.readouterr().out


HAD = (
    "container ctr had 31000 MiB of gpu-0, and its limit is 8100 MiB; its processes were ended. "
    "Let the program use less memory, or ask for more of the GPU"
)


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_a_pod_is_told_of_memory_over_its_limit_what_was_said_last(
    api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], phase: str
) -> None:
    said = [
        event(note="it has too much", second=3, reason=OVER),
        event(note=HAD, second=9, reason=KILLED),
        event("earlier", note="an earlier pod", second=11, reason=KILLED),
    ]
    assert explain(api, tmp_path, *TAKEN, holder(phase), *said, of="pod train-0") == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("Had more GPU memory than its limit:")
    assert lines[at + 1 :] == [f"  * 2026-01-01T00:00:09Z: {HAD}"]
    assert explain(api, tmp_path, node(), of="pod train-0", flags=("-o", "json")) == 0
    assert json.loads(capsys.readouterr().out)["memoryOverLimit"].endswith(HAD)
    assert explain(api, tmp_path, node()) == 1
    assert "more GPU memory" not in capsys.readouterr().out


def test_a_claim_is_told_of_its_memory_too(
    api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = having("gpu-0", "gpu-1")
    about = event(theirs["metadata"].setdefault("uid", "claim-uid"), note=HAD, reason=KILLED)
    about["regarding"] |= {"kind": "ResourceClaim", "name": theirs["metadata"]["name"]}
    things = (node(), *classes(), *gpus(), theirs, holder("Running"), about)
    explain(api, tmp_path, *things, of="claim theirs")
    assert HAD in capsys.readouterr().out
