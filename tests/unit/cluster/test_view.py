"""What people and programs see of a cluster's usage."""

import json

import make
from dra_driver.admin.cluster.usage import ClusterUsage, usage_of
from dra_driver.admin.cluster.view import report, table
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from published import Object, counter_set, device, part_of, read_pools, shares, slices, used_by

MIB = 1024**2
PLAIN = slices([device(f"gpu-{number}") for number in range(4)])


def found(slices_there: list[Object], *claims: Object) -> ClusterUsage:
    return usage_of(read_pools(slices_there), used_by(*claims))


def test_a_divided_gpu_that_a_claim_has_as_a_whole_is_shown() -> None:
    shared = slices(shares(10), [counter_set(shares=10)])

    assert table(found(shared, make.claim_object("gpu-0"))).splitlines()[1:] == [
        "node-1  nvidia.com/gpu.shared  10       0     10       0",
        "node-1  (by claim)             1        1     0        0",
    ]


def test_wide_names_devices_claims_and_pods() -> None:
    unused = make.claim_object("gpu-1", name="b")
    unused["status"]["reservedFor"] = []
    shown = table(found(PLAIN, make.claim_object("gpu-0"), unused), wide=True)

    assert shown.splitlines()[2:] == [
        "",
        "NODE    DEVICE  RESOURCE NAME   CLAIM          USED BY",
        "node-1  gpu-1   nvidia.com/gpu  default/b      -",
        "node-1  gpu-0   nvidia.com/gpu  default/claim  pod",
    ]


def in_parts(mode: str, node: str) -> list[Object]:
    """A node with two GPUs of which claims can have parts."""
    gpus = [make.gpu(number, memory_bytes=15000 * MIB) for number in range(2)]
    share = ShareOffer(consumable=Consumable.of(mode))
    return slices(projection(make.inventory(*gpus), share=share).devices, node=node)


def test_capacities_that_claims_share_have_a_table_of_their_own() -> None:
    there = [*in_parts("4", "node-1"), *in_parts("unlimited", "node-2")]
    part = part_of("gpu-0", "a", {"memory": "4000Mi", "cores": 20, "shares": 1})

    assert table(found(there, part)).splitlines() == [
        "NODE    RESOURCE NAME   OFFERED  USED  BLOCKED  FREE",
        "node-1  nvidia.com/gpu  8        1     0        7",
        "node-2  nvidia.com/gpu  any      0     -        any",
        "",
        "NODE    RESOURCE NAME   CAPACITY  OFFERED    USED      FREE       MOST ON ONE DEVICE",
        "node-1  nvidia.com/gpu  memory    30000 MiB  4000 MiB  26000 MiB  15000 MiB",
        "node-1  nvidia.com/gpu  cores     200 %      20 %      180 %      100 %",
        "node-1  nvidia.com/gpu  shares    8          1         7          4",
        "node-2  nvidia.com/gpu  memory    30000 MiB  0 MiB     30000 MiB  15000 MiB",
        "node-2  nvidia.com/gpu  cores     200 %      0 %       200 %      100 %",
    ]


def test_wide_says_what_each_claim_consumes() -> None:
    claims = (
        part_of("gpu-0", "a", {"memory": "4000Mi", "cores": 20, "shares": 1}),
        part_of("gpu-0", "b", {"memory": "0", "cores": 0}),
        make.claim_object("gpu-1", name="c"),
    )
    shown = table(found(in_parts("4", "node-1"), *claims), wide=True).splitlines()

    assert shown[shown.index("", 3) + 1 :] == [
        "NODE    DEVICE  RESOURCE NAME   CLAIM      USED BY  CONSUMES",
        "node-1  gpu-0   nvidia.com/gpu  default/a  pod      memory 4000 MiB, cores 20 %, shares 1",
        "node-1  gpu-0   nvidia.com/gpu  default/b  pod      nothing",
        "node-1  gpu-1   nvidia.com/gpu  default/c  pod      -",
    ]


def test_programs_get_capacities_in_bytes_and_percent() -> None:
    part = part_of("gpu-0", "a", {"memory": "4000Mi", "cores": 20, "shares": 1})
    (node,) = json.loads(report(found(in_parts("unlimited", "node-1"), part)))["nodes"]

    (resource,) = node["resources"]
    assert (resource["offered"], resource["used"], resource["free"]) == (None, 1, None)
    assert resource["capacities"] == {
        "memory": {
            "offered": 30000 * MIB,
            "used": 4000 * MIB,
            "free": 26000 * MIB,
            "mostOnOneDevice": 15000 * MIB,
        },
        "cores": {"offered": 200, "used": 20, "free": 180, "mostOnOneDevice": 100},
    }
    (allocated,) = node["allocated"]
    assert allocated["shareID"] == "a"
    assert allocated["consumed"] == {"memory": 4000 * MIB, "cores": 20, "shares": 1}


def test_uncounted_devices_are_listed_with_the_reason() -> None:
    half = slices(shares(10), [counter_set(shares=10)], node="node-2")[1:]
    sick = slices([device("gpu-0", taints=("NoSchedule",))], node="node-3")
    claims = (
        make.claim_object("gpu-9"),
        make.claim_object("gpu-0", pool="node-2"),
        make.claim_object("gpu-0", pool="node-9", name="lost"),
    )
    shown = table(found([*PLAIN, *half, *sick, *slices([], node="node-4")], *claims))
    incomplete = (
        "1 of 2 ResourceSlices of generation 1 of the pool exist: the driver gpu.nvidia.com"
    )

    assert shown.splitlines()[3:] == [
        "",
        "not counted:",
        f"  node-2: {incomplete} is still writing them, or cannot (devices in use: 1)",
        "",
        "tainted, so not free:",
        "  node-3 gpu-0: gpu.nvidia.com/xid:NoSchedule",
        "",
        "allocated, but no longer published:",
        "  node-1 gpu-9: claim default/claim",
        "  node-9 gpu-0: claim default/lost",
        "",
        "without devices:",
        "  node-4",
    ]


def test_empty_pools_are_reported() -> None:
    assert table(found(slices([]))).splitlines()[0] == "no devices are published"


def test_programs_get_the_same_as_json() -> None:
    stray = make.claim_object("gpu-0", pool="node-9", name="lost")
    shown = json.loads(report(found(PLAIN, make.claim_object("gpu-0", "gpu-9"), stray)))

    gpus = {"name": "nvidia.com/gpu", "offered": 4, "used": 1, "free": 3, "capacities": {}}
    gpus |= {"blocked": 0, "parts": 1}
    use = {"claim": "default/claim", "usedBy": ["pod"], "shareID": None, "consumed": {}}
    assert shown == {
        "nodes": [
            {
                "name": "node-1",
                "pool": "node-1",
                "problem": None,
                "resources": [gpus],
                "allocated": [{"device": "gpu-0", "resource": "nvidia.com/gpu", **use}],
                "tainted": [],
                "notPublished": [{"device": "gpu-9", **use}],
            }
        ],
        "poolsNotPublished": [
            {"pool": "node-9", "device": "gpu-0", **use, "claim": "default/lost"}
        ],
        "refused": [],
    }
