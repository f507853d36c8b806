"""The admission policies for what users write refuse, or warn of, that and nothing else."""

from typing import Any

import pytest

from bad_configs import BAD_CONFIGS, VERSION
from policies import refusal, unneeded

DRIVER = "gpu.nvidia.com"


def config(parameters: Any = None, *named: str, driver: str = DRIVER) -> dict[str, Any]:
    return {"requests": list(named), "opaque": {"driver": driver, "parameters": parameters or {}}}


def parameters(kind: str = "GpuConfig", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, **fields}


def request(class_name: str = "any.example.com", name: str = "r", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": class_name, **fields}}


def either(*class_names: str, **fields: Any) -> dict[str, Any]:
    """A request with alternatives."""
    subs = [{"name": f"s{n}", "deviceClassName": c, **fields} for n, c in enumerate(class_names)]
    return {"name": "r", "firstAvailable": subs}


def claim(*configs: Any, requests: Any = None, **metadata: Any) -> dict[str, Any]:
    devices = {"requests": requests or [request()], "config": list(configs)}
    return {"metadata": {"name": "c", **metadata}, "spec": {"devices": devices}}


def template(body: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t"}, "spec": {"spec": body["spec"]}}


def selecting(*expressions: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": one}} for one in expressions]}


BAD = config(parameters(sharing={"strategy": "Foo"}))
MISSED = config(driver="gpu.nvidia.org")
OF_GPU, OF_MIG = (config(parameters(kind), "r") for kind in ("GpuConfig", "MigDeviceConfig"))
SLOW = parameters(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})
LIMITED = parameters(
    sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Gi"}}
)
BESIDE = (config(driver="nic.example.com"), config(SLOW), config(LIMITED))
NEAR = selecting("device.driver == 'gpu.nvida.com'")
OURS = selecting("device.driver == 'gpu.nvidia.com' && device.attributes[\"gpu.nvidia.com\"].a")

CONFIGS_REFUSED = [
    *(claim(*BESIDE, config(one.parameters)) for one in BAD_CONFIGS if one.in_policy),
    template(claim(config(parameters()), BAD)),
    template(claim(OF_GPU, OF_MIG, requests=[request(DRIVER)])),
    *(
        {"metadata": {"name": "class"}, "spec": {"config": [one]}}
        for one in (BAD, config(parameters("Foo")))
    ),
    *(
        claim(config(parameters(kind), *named), requests=[request(class_name)])
        for named in ((), ("r",))
        for kind, class_name in (
            ("MigDeviceConfig", DRIVER),
            ("GpuConfig", "mig.nvidia.com"),
            ("GpuConfig", "vfio.gpu.nvidia.com"),
        )
    ),
]
NEARLY = [
    *(claim(config(driver=name)) for name in ("gpu.nvidia.org", "gpus.nvidia.com", "nvidia.com")),
    template(claim(MISSED)),
    {"metadata": {"name": "class"}, "spec": {"config": [MISSED]}},
    {"metadata": {"name": "class"}, "spec": NEAR},
    claim(requests=[request(**NEAR)]),
    claim(requests=[either("any.example.com", **NEAR)]),
]


def pod(*resources: str, **spec: Any) -> dict[str, Any]:
    """A pod that names its node."""
    container = {"name": "c", "resources": {"limits": dict.fromkeys(resources, 1)}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], "nodeName": "n", **spec}}


def workload(body: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w"}, "spec": {"template": {"spec": body["spec"]}}}


BY_TEMPLATE = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}
GPU_POD = pod("nvidia.com/gpu")
FIRST = pod(initContainers=GPU_POD["spec"]["containers"])
CRON_JOB = {"metadata": {"name": "j"}, "spec": {"jobTemplate": workload(GPU_POD)}}
PAST_THE_SCHEDULER = [
    *(GPU_POD, FIRST, workload(GPU_POD), CRON_JOB, pod("cpu", "nvidia.com/mig-1g.5gb")),
    *(pod(**BY_TEMPLATE), workload(pod(**BY_TEMPLATE))),
]
REFUSED = {
    "claim-configs": CONFIGS_REFUSED,
    "near-misses": NEARLY,
    "pinned-pods": PAST_THE_SCHEDULER,
}
LEAST = {"defaultActiveThreadPercentage": 0, "defaultPinnedDeviceMemoryLimit": "1Mi"}
MOST = {
    "defaultActiveThreadPercentage": 100,
    "defaultPinnedDeviceMemoryLimit": 1048576,
    "defaultPerDevicePinnedMemoryLimit": {"0": 1048576, "31": "1Mi", "MIG-1": "2Gi"},
}
TAKEN = [
    claim(),
    *(
        claim(config(parameters(sharing={"strategy": "MPS", "mpsConfig": limits})))
        for limits in (LEAST, MOST)
    ),
    *(
        claim(
            config(parameters(sharing={**SLOW["sharing"], "timeSlicingConfig": {"interval": one}}))
        )
        for one in ("Default", "Short", "Medium", "Long")
    ),
    *(
        claim(config(parameters("VfioDeviceConfig", iommu={"backendPolicy": one})))
        for one in ("LegacyOnly", "PreferIommuFD")
    ),
    claim(config(parameters())),
    claim(config(parameters(sharing={"strategy": "MPS", "mpsConfig": None}))),
    claim(config(parameters()), config({"any": "thing"}, driver="compute-domain.nvidia.com")),
    claim(config(parameters("VfioDeviceConfig", iommu={"enableAPIDevice": True}))),
    claim(config(parameters()), requests=[request(DRIVER), request("mig.nvidia.com", "m")]),
    claim(OF_GPU, requests=[either(DRIVER, "mig.nvidia.com")]),
    claim(OF_MIG, OF_GPU, requests=[request(DRIVER)]),
    claim(OF_GPU, requests=[request("fast.example.com"), request(DRIVER, "g")]),
    {"metadata": {"name": "class"}, "spec": {"config": [config(parameters())], **OURS}},
    claim(requests=[request(**OURS), either("any.example.com", **OURS)]),
    claim(config(SLOW, "other"), config(SLOW, driver="x.org"), requests=[request(DRIVER)]),
    claim(config(SLOW), requests=[request(DRIVER, adminAccess=True), either("any.example.com")]),
    claim(config(parameters(sharing={"strategy": "MPS"})), requests=[request(DRIVER)]),
    *(pod("cpu"), pod(resourceClaims=[{"name": "c", "resourceClaimName": "c"}])),
    *(pod("nvidia.com/gpu", nodeName=""), workload(pod("nvidia.com/gpu", nodeName=""))),
    {**GPU_POD, "metadata": {"name": "p", "ownerReferences": [{"kind": "ReplicaSet"}]}},
]


@pytest.mark.parametrize(
    ("policy", "body"), [(policy, body) for policy, bodies in REFUSED.items() for body in bodies]
)
def test_mistakes_give_warnings_on_create_and_spec_changes(policy: str, body: Any) -> None:
    said = refusal(policy, body)
    assert said
    assert refusal(policy, body, {**body, "spec": {}}) == said
    assert refusal(policy, {**body, "metadata": {"name": "other"}}, body) is None


@pytest.mark.parametrize("policy", REFUSED)
def test_every_rule_is_needed(policy: str) -> None:
    assert unneeded(policy, [{"new": body} for body in REFUSED[policy]]) == []


@pytest.mark.parametrize("body", TAKEN)
def test_nothing_else_gives_a_warning(body: Any) -> None:
    policies = ["pinned-pods"] if "containers" in str(body) else ["claim-configs", "near-misses"]
    for policy in policies:
        assert refusal(policy, body) is None
