"""What doctor says of pods that bypassed the scheduler."""

from typing import Any

from testbed.apiserver.server import ApiServer

from doctored import Doctor

Object = dict[str, Any]
CHECK = "past-scheduler"


def pod(name: str, phase: str = "Running", **status: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "team", "name": name, "uid": name},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        },
        "status": {"phase": phase, **status},
    }


def test_a_pod_that_runs_without_the_gpus_of_its_limits_is_a_warning(
    well: ApiServer, doctor: Doctor
) -> None:
    well.put(pod("pinned"))
    ((severity, seen, advice),) = doctor.told(CHECK)
    assert severity == "warning"
    assert seen.startswith(
        "pod team/pinned: the pod was bound to node node-1 without the scheduler"
    )
    assert seen.endswith("and runs without what was not allocated: nvidia.com/gpu")
    assert "by a nodeSelector or affinity" in advice


def test_served_and_finished_pods_are_not_reported(well: ApiServer, doctor: Doctor) -> None:
    has = {"extendedResourceClaimStatus": {"resourceClaimName": "made-for-it"}}
    well.put(pod("served", **has), pod("over", phase="Succeeded"))
    assert doctor.told(CHECK) == [
        ("ok", "no pod on a node with GPUs has bypassed the scheduler", "")
    ]


def test_with_hundreds_of_them_the_report_stays_short(well: ApiServer, doctor: Doctor) -> None:
    well.put(*(pod(f"pinned-{index}") for index in range(25)))
    found = doctor.told(CHECK)
    assert len(found) == 21
    assert found[-1][1] == "5 more pods like these"
