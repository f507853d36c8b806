"""Processes on GPUs, put together with pods and claims."""

from msgspec.structs import replace

import make
from dra_driver.admin.status.usage_view import Selected, document, lines
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerGroup, ConsumerPod
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.devices.device import DeviceKind
from dra_driver.devices.load import GpuLoad, GpuProcess, Memory, MigLoad, ProcessKind
from dra_driver.mps.domain import Daemon
from dra_driver.ops.metrics import UsageMetric
from dra_driver.usage.model import DeviceUse, GpuUse, Known, NodeUse, Process, User, used
from dra_driver.usage.processes import ContainerName, PodProcess, SeenProcess
from dra_driver.usage.sampler import series

GIB = 1 << 30
GPU = make.gpu(0)
POD_A, POD_B = ConsumerPod(name="train-0", uid="uid-a"), ConsumerPod(name="infer-0", uid="uid-b")
ID_A, ID_B = "aa" * 32, "bb" * 32
NAMES = {
    ID_A: ContainerName(namespace="team-a", pod="train-0", name="trainer"),
    ID_B: ContainerName(namespace="team-b", pod="infer-0", name="server"),
}


def claim(name: str, *pods: ConsumerPod, namespace: str = "team-a", **facts: object) -> ClaimRecord:
    ref = ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace=namespace, name=name)
    return replace(make.record(GPU), ref=ref, pods=pods, **facts)  # type: ignore[arg-type]


def load(*processes: GpuProcess, **facts: object) -> GpuLoad:
    base = GpuLoad(
        index=0,
        minor=0,
        uuid=GPU.uuid,
        product_name="NVIDIA H100 80GB HBM3",
        memory=Memory(total_bytes=80 * GIB, used_bytes=20 * GIB),
        busy=0.4,
        processes=processes,
    )
    return replace(base, **facts)  # type: ignore[arg-type]


def on_gpu(pid: int, gib: int | None = 1, sm: float | None = 0.1, **facts: object) -> GpuProcess:
    memory = None if gib is None else gib * GIB
    base = GpuProcess(pid=pid, kind=ProcessKind.COMPUTE, memory_bytes=memory, sm=sm)
    return replace(base, **facts)  # type: ignore[arg-type]


def seen(pid: int, pod: str = "", container: str | None = None, parent: int = 1) -> SeenProcess:
    where = PodProcess(pod_uid=pod, container_id=container) if pod else None
    return SeenProcess(pid=pid, parent=parent, name="python3", start_ticks=100 + pid, pod=where)


def users(*, load: GpuLoad, seen: list[SeenProcess], known: Known) -> tuple[User, ...]:
    (device,) = used(load, {one.pid: one for one in seen}, known).devices
    return device.users


def test_a_process_is_its_pods_and_the_pods_claims() -> None:
    (user,) = users(
        load=load(on_gpu(7, 3), on_gpu(8, 2, 0.2)),
        seen=[seen(7, "uid-a", ID_A), seen(8, "uid-a", ID_A)],
        known=Known(records=[claim("one", POD_A)], names=NAMES),
    )
    assert (user.claims, user.namespace, user.pod) == (("team-a/one",), "team-a", "train-0")
    assert (user.container, user.container_id, user.devices) == ("trainer", ID_A, ("gpu-0",))
    assert (user.memory_bytes, user.limit_bytes) == (5 * GIB, None)
    assert user.sm is not None
    assert round(user.sm, 3) == 0.3
    assert [process.pid for process in user.processes] == [7, 8]


def test_containers_and_pods_are_distinguished() -> None:
    found = users(
        load=load(on_gpu(7), on_gpu(8), on_gpu(9)),
        seen=[seen(7, "uid-a", ID_A), seen(8, "uid-a", ID_B), seen(9, "uid-b", ID_B)],
        known=Known(records=[claim("one", POD_A), claim("two", POD_B, namespace="team-b")]),
    )
    assert [(one.claims, one.pod_uid, one.container_id) for one in found] == [
        (("team-a/one",), "uid-a", ID_A),
        (("team-a/one",), "uid-a", ID_B),
        (("team-b/two",), "uid-b", ID_B),
    ]


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    (user,) = users(
        load=load(on_gpu(7, None), on_gpu(8, 2, None)),
        seen=[seen(7, "uid-a", ID_A), seen(8, "uid-a", ID_A)],
        known=Known(),
    )
    assert (user.memory_bytes, user.sm) == (None, None)


def test_ended_processes_are_omitted_and_node_processes_are_others() -> None:
    (device,) = used(
        load(on_gpu(7), on_gpu(8)), {8: seen(8)}, Known(records=[claim("one", POD_A)])
    ).devices
    assert [other.pid for other in device.others] == [8]
    (idle,) = device.users
    assert (idle.pod, idle.processes, idle.claims) == ("train-0", (), ("team-a/one",))


def test_a_pod_without_a_claim_is_listed_without_one() -> None:
    (user, idle) = users(
        load=load(on_gpu(7)),
        seen=[seen(7, "uid-b", ID_B)],
        known=Known(records=[claim("one", POD_A)], names=NAMES),
    )
    assert (user.claims, user.namespace, user.pod) == ((), "team-b", "infer-0")
    assert idle.pod == "train-0"


def test_later_pods_have_the_claim_and_the_name_that_the_kubelet_says() -> None:
    later, idle = ConsumerPod(name="train-1", uid="uid-c"), ConsumerPod(name="train-2", uid="uid-d")
    records = [claim("one", POD_A), claim("two", POD_B)]
    known = Known(records=records, pods={ClaimUid("uid-one"): (POD_A, later, idle)})
    found = users(load=load(on_gpu(7)), seen=[seen(7, "uid-c", ID_A)], known=known)
    assert [(one.claims, one.namespace, one.pod, len(one.processes)) for one in found] == [
        (("team-a/one",), "team-a", "train-1", 1),
        (("team-a/one",), "team-a", "train-0", 0),
        (("team-a/one",), "team-a", "train-2", 0),
        (("team-a/two",), "team-a", "infer-0", 0),
    ]


def test_a_pod_of_a_group_has_the_groups_claim() -> None:
    gang = replace(claim("gang"), groups=(ConsumerGroup(name="workers", uid="uid-g"),), pods=())
    member = ConsumerPod(name="worker-3", uid="uid-w")
    known = Known(records=[claim("one", POD_A), gang], pods={ClaimUid("uid-gang"): (member,)})
    (user, idle) = users(load=load(on_gpu(7)), seen=[seen(7, "uid-w", ID_A)], known=known)
    assert (user.claims, user.pod, user.pod_groups) == (("team-a/gang",), "worker-3", ("workers",))
    assert (idle.claims, idle.pod) == (("team-a/one",), "train-0")


def test_an_idle_pod_group_is_listed_by_its_name() -> None:
    gang = replace(claim("gang"), groups=(ConsumerGroup(name="workers", uid="uid-g"),), pods=())
    known = Known(records=[gang])
    (user,) = users(load=load(), seen=[], known=known)
    assert (user.claims, user.pod_uid, user.pod_groups) == (("team-a/gang",), "", ("workers",))
    use = NodeUse(gpus=(used(load(), {}, known),), silent={}, sees_processes=True)
    assert "(claim team-a/gang of PodGroup workers)" in "\n".join(lines(use, width=200))


def test_an_ended_pod_is_not_idle_but_owns_its_last_process() -> None:
    later = ConsumerPod(name="train-1", uid="uid-c")
    known = Known(records=[claim("one", POD_A)], pods={ClaimUid("uid-one"): (later,)})
    assert [one.pod for one in users(load=load(), seen=[], known=known)] == ["train-1"]
    (user, _) = users(load=load(on_gpu(7)), seen=[seen(7, "uid-a", ID_A)], known=known)
    assert (user.claims, user.pod) == (("team-a/one",), "train-0")


def test_an_mps_server_is_recognised_by_its_daemon() -> None:
    known = Known(daemons=[Daemon(pid=50, start_ticks=150)])
    (device,) = used(
        load(on_gpu(60), on_gpu(7, kind=ProcessKind.MPS)),
        {60: seen(60, parent=50), 7: seen(7, "uid-a", ID_A)},
        known,
    ).devices
    assert [server.pid for server in device.servers] == [60]
    assert [user.processes[0].kind for user in device.users] == ["mps"]


def test_released_claims_have_no_devices() -> None:
    known = Known(records=[claim("one", POD_A, state=RecordState.RELEASED)])
    assert users(load=load(), seen=[], known=known) == ()


MIG_LOAD = MigLoad(
    uuid="MIG-1",
    gpu_instance=11,
    compute_instance=0,
    memory=Memory(total_bytes=10 * GIB, used_bytes=GIB),
)


def test_a_process_is_on_one_of_the_compute_instances_of_a_mig_device() -> None:
    found = used(
        load(
            on_gpu(7, gpu_instance=11, compute_instance=1),
            migs=(MIG_LOAD, replace(MIG_LOAD, uuid="MIG-2", compute_instance=1)),
        ),
        {7: seen(7)},
        Known(),
    )
    assert [(one.uuid, len(one.others)) for one in found.devices] == [("MIG-1", 0), ("MIG-2", 1)]


def node_use() -> NodeUse:
    records = [claim("one", POD_A), claim("two", POD_B, namespace="team-b")]
    gpu = used(
        load(on_gpu(7, 12, 0.38), on_gpu(8, 1, 0.0), on_gpu(9, None, 0.0)),
        {7: seen(7, "uid-a", ID_A), 8: seen(8), 9: seen(9, "uid-b", ID_B)},
        Known(records=records, names=NAMES),
    )
    return NodeUse(gpus=(gpu,), silent={1: "it hangs"}, sees_processes=True)


def test_for_people() -> None:
    assert lines(node_use(), width=120) == [
        f"GPU 0  NVIDIA H100 80GB HBM3  gpu-0  {GPU.uuid}",
        "  [#####...............]  20.0 of 80.0 GiB, busy 40%",
        "  POD             CONTAINER  DEVICE  MEMORY    LIMIT  SM   PROCESSES  CLAIM",
        "  team-a/train-0  trainer    whole   12.0 GiB  -      38%  7 python3  team-a/one",
        "  team-b/infer-0  server     whole   ?         -      0%   9 python3  team-b/two",
        "  (no pod)        -          whole   1.0 GiB   -      0%   8 python3  -",
        "",
        "GPU 1  not known: it hangs",
    ]
    only = lines(node_use(), width=120, of=Selected(indices=frozenset({1})))
    assert only == ["GPU 1  not known: it hangs"]


def test_no_line_is_wider_than_the_terminal() -> None:
    use = node_use()
    (gpu,) = use.gpus
    (device,) = gpu.devices
    long = tuple(
        replace(user, claims=(f"a-long-namespace/{'claim-' * 20}",), pod="pod-" * 30)
        for user in device.users
    )
    use = replace(use, gpus=(GpuUse(load=gpu.load, devices=(replace(device, users=long),)),))
    for width in (40, 80, 100, 120):
        found = lines(use, width=width)
        assert max(map(len, found)) <= max(width, 80)
        assert any("/pod-pod-" in line and "…" in line for line in found)
        assert not any("CLAIM" in line for line in found)


def test_for_programs() -> None:
    (gpu,) = document(node_use())["gpus"]  # type: ignore[misc]
    (device,) = gpu["devices"]
    assert device["memory"] == {"totalBytes": 80 * GIB, "usedBytes": 20 * GIB}
    assert [(user["pod"], user["memoryBytes"]) for user in device["users"]] == [
        ("train-0", 12 * GIB),
        ("infer-0", None),
    ]
    assert [other["pid"] for other in device["others"]] == [8]


def test_for_scrapers() -> None:
    found = {(one.metric, tuple(one.labels)): one.value for one in series(node_use())}
    place = ("0", "gpu-0", str(GPU.uuid))
    trainer = ("team-a", "train-0", "trainer", "team-a/one", *place)
    server = ("team-b", "infer-0", "server", "team-b/two", *place)
    assert found == {
        (UsageMetric.UP, ("1",)): 0,
        (UsageMetric.UP, ("0",)): 1,
        (UsageMetric.MEMORY, place): 20 * GIB,
        (UsageMetric.MEMORY_TOTAL, place): 80 * GIB,
        (UsageMetric.BUSY, place): 0.4,
        (UsageMetric.OTHER_MEMORY, (*place, "host")): GIB,
        (UsageMetric.CONTAINER_MEMORY, trainer): 12 * GIB,
        (UsageMetric.CONTAINER_SM, trainer): 0.38,
        (UsageMetric.CONTAINER_PROCESSES, trainer): 1,
        (UsageMetric.CONTAINER_SM, server): 0.0,
        (UsageMetric.CONTAINER_PROCESSES, server): 1,
        (UsageMetric.LEFT_OUT, ()): 0,
    }


def test_there_are_never_more_containers_than_a_bound_and_no_label_set_twice() -> None:
    one = User(
        pod_uid="p",
        container_id=ID_A,
        processes=(
            Process(pid=1, start_ticks=0, name="a", kind="compute", memory_bytes=GIB, sm=0.1),
        ),
    )
    twins = (one, replace(one, pod="p"), replace(one, pod_uid="q"))
    device = DeviceUse(name="gpu-0", uuid=GPU.uuid, kind=DeviceKind.GPU, memory=None, users=twins)
    use = NodeUse(gpus=(GpuUse(load=load(), devices=(device,)),), silent={}, sees_processes=True)
    keys = [(each.metric, tuple(each.labels)) for each in series(use)]
    assert len(keys) == len(set(keys))
    bounded = list(series(use, most=1))
    (left,) = [each.value for each in bounded if each.metric is UsageMetric.LEFT_OUT]
    assert left == 2
    pods = [each for each in bounded if each.metric is UsageMetric.CONTAINER_PROCESSES]
    assert len(pods) == 1


def test_a_container_and_its_successor_have_one_limit_and_what_both_use() -> None:
    ended = User(
        namespace="team-a",
        pod="train-0",
        pod_uid="uid-a",
        container="trainer",
        container_id=ID_A,
        limit_bytes=10 * GIB,
        processes=(
            Process(pid=1, start_ticks=0, name="a", kind="compute", memory_bytes=3 * GIB, sm=0.1),
        ),
    )
    process = Process(pid=2, start_ticks=0, name="a", kind="compute", memory_bytes=2 * GIB, sm=0.2)
    begun = replace(ended, container_id=ID_B, processes=(process,))
    device = DeviceUse(
        name="gpu-0", uuid=GPU.uuid, kind=DeviceKind.GPU, memory=None, users=(ended, begun)
    )
    use = NodeUse(gpus=(GpuUse(load=load(), devices=(device,)),), silent={}, sees_processes=True)
    found = {each.metric: each.value for each in series(use)}
    assert found[UsageMetric.CONTAINER_LIMIT] == 10 * GIB
    assert found[UsageMetric.CONTAINER_MEMORY] == 5 * GIB
    assert found[UsageMetric.CONTAINER_PROCESSES] == 2


def test_containers_above_the_limit_are_marked() -> None:
    process = Process(pid=1, start_ticks=0, name="a", kind="compute", memory_bytes=5 * GIB, sm=0.1)
    user = User(namespace="team-a", pod="train-0", pod_uid="uid-a", processes=(process,))
    users = tuple(replace(user, limit_bytes=limit * GIB) for limit in (4, 5))
    device = DeviceUse(name="gpu-0", uuid=GPU.uuid, kind=DeviceKind.GPU, memory=None, users=users)
    use = NodeUse(gpus=(GpuUse(load=load(), devices=(device,)),), silent={}, sees_processes=True)
    over, fine = [line for line in lines(use, width=None) if "train-0" in line]
    assert "5.0 GiB  4.0 GiB (over)" in over
    assert "over" not in fine
