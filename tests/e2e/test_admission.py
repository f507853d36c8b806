"""The API server refuses the configs that Prepare would refuse, and says which field is wrong."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from testbed.api import Api, ApiStatusError, Object
from testbed.commands import TestbedError, wait_until
from testbed.node import GpuNode

from bad_configs import BAD_CONFIGS, VERSION, BadConfig
from dra_driver.admin.admission.policy import policy_checks
from dra_driver.kube.kubeconfig import from_kubeconfig
from e2e.scene import NAMESPACE, claim_spec
from generated_configs import Json, configs
from resource_nvidia_com.decode import decode
from resource_nvidia_com.problems import InvalidConfigError
from sampling import examples

pytestmark = pytest.mark.e2e

GROUP = "/apis/resource.k8s.io/v1"
POLICY = "dra-driver-claim-configs"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
GOOD: Object = {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
BAD: Object = GOOD | {"sharing": {"strategy": "Foo"}}
MOST_PARAMETERS = 10 * 1024
"""Bytes of one config, at most (resource.k8s.io/v1 OpaqueParametersMaxLength)."""

REFUSAL = "opaque.parameters.sharing.strategy is required and must be TimeSlicing or MPS"
"""What the policy says to BAD."""

MESSAGES = {validation.message: validation.path for validation in policy_checks().validations}
"""What the policy can say at all, and the field that each message is about."""


@pytest.fixture(scope="module")
def api(node: GpuNode) -> Api:
    """The API, with the policy at work: it takes a moment from being stored to being used."""
    found = node.cluster.api
    wait_until(lambda: refusal(found, claim(BAD)), "the policy to be at work", timeout=120)
    return found


def entries(*parameters: Json) -> list[Object]:
    return [
        {"opaque": {"driver": "gpu.nvidia.com", "parameters": parameter}}
        for parameter in parameters
    ]


def claim(*parameters: Json, class_name: str = "any.example.com") -> Object:
    """A claim; what devices this class gives, the policy does not know: any kind may be right."""
    spec = claim_spec()
    spec["devices"]["requests"][0]["exactly"]["deviceClassName"] = class_name
    spec["devices"]["config"] = entries(*parameters)
    return thing("ResourceClaim", spec)


def thing(kind: str, spec: Object) -> Object:
    metadata = {"generateName": "try-"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def refusal(api: Api, body: Object) -> str:
    """What the policy says to an object, or nothing when the API server would take it."""
    plural = f"{body['kind'].lower()}{'es' if body['kind'] == 'DeviceClass' else 's'}"
    scope = "" if body["kind"] == "DeviceClass" else f"/namespaces/{NAMESPACE}"
    try:
        api.request("POST", f"{GROUP}{scope}/{plural}?dryRun=All", body)
    except ApiStatusError as error:
        code, _, said = str(error).partition(": ")
        who, _, text = said.partition(" denied request: ")
        if code != "422" or POLICY not in who:
            raise
        return text
    return ""


@pytest.mark.parametrize(
    "bad", [bad for bad in BAD_CONFIGS if bad.in_policy], ids=lambda bad: str(bad.name)
)
def test_a_bad_config_is_refused_for_the_field_that_the_driver_names(
    api: Api, bad: BadConfig
) -> None:
    said = refusal(api, claim(bad.parameters))
    assert said in MESSAGES
    assert is_about_one_of(said, wrong_fields(bad.parameters))


def test_policy_and_driver_agree_on_any_config(api: Api) -> None:
    @settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
    @given(configs)
    def agree(config: Json) -> None:
        said, wrong = refusal(api, claim(config)), wrong_fields(config)
        assert bool(said) == bool(wrong)
        # An expression that cannot be evaluated refuses too, but names no field.
        assert not said or is_about_one_of(said, wrong)

    agree()


MIG: Object = {"apiVersion": VERSION, "kind": "MigDeviceConfig"}


def asking(*requests: Object, named: tuple[str, ...] = (), kinds: tuple[Object, ...]) -> Object:
    """A claim with requests, and configs that name some of them."""
    config = [entry | {"requests": list(named)} for entry in entries(*kinds)]
    return thing("ResourceClaim", {"devices": {"requests": list(requests), "config": config}})


def alternatives(name: str, *class_names: str) -> Object:
    subs = [{"name": f"s{n}", "deviceClassName": one} for n, one in enumerate(class_names)]
    return {"name": name, "firstAvailable": subs}


def test_a_config_for_devices_that_its_request_cannot_get_is_refused(api: Api) -> None:
    mig = alternatives("m", "mig.nvidia.com")
    for named in ((), ("m",), ("m/s0",)):
        assert "must fit the devices of" in refusal(api, asking(mig, named=named, kinds=(GOOD,)))
        assert refusal(api, asking(mig, named=named, kinds=(GOOD, MIG))) == ""


def wrong_fields(config: Json) -> list[tuple[str, ...]]:
    """The fields that the driver says are wrong."""
    try:
        decode(json.loads(json.dumps(config)))
    except InvalidConfigError as error:
        return [problem.path for problem in error.problems]
    return []


def is_about_one_of(said: str, fields: list[tuple[str, ...]]) -> bool:
    """Whether the policy names one of the fields, or what they stand in or hold."""
    named = MESSAGES[said]
    return any(all(a == b for a, b in zip(named, field, strict=False)) for field in fields)


def test_templates_and_device_classes_are_checked_too(api: Api) -> None:
    template = thing("ResourceClaimTemplate", {"spec": claim(GOOD, BAD)["spec"]})
    assert refusal(api, template) == REFUSAL
    good_template = thing("ResourceClaimTemplate", {"spec": claim(GOOD)["spec"]})
    assert refusal(api, good_template) == ""
    assert refusal(api, thing("DeviceClass", {"config": entries(BAD)})) == REFUSAL
    assert refusal(api, thing("DeviceClass", {"config": entries(GOOD)})) == ""
    assert refusal(api, thing("DeviceClass", {})) == ""


def test_the_largest_claims_are_judged_within_the_api_server_s_limits(api: Api) -> None:
    devices = {str(index): "10Gi" for index in range(32)}
    settings_: Object = {"defaultPerDevicePinnedMemoryLimit": devices, "multiUser": True}
    large = GOOD | {"sharing": {"strategy": "MPS", "mpsConfig": settings_}}
    while len(json.dumps(large)) < MOST_PARAMETERS - len(', "GPU-fff": "10Gi"'):
        devices[f"GPU-{len(devices):x}"] = "10Gi"
    assert refusal(api, claim(*[large] * 32)) == ""
    names = [f"r{n}" for n in range(32)]
    requests = (alternatives(name, *["mig.nvidia.com"] * 8) for name in names)
    assert refusal(api, asking(*requests, named=tuple(names), kinds=(MIG,) * 32)) == ""
    broken = large | {"sharing": {"strategy": "MPS", "mpsConfig": settings_ | {"multiUser": 1}}}
    said = refusal(api, claim(*[large] * 31, broken))
    assert said == "opaque.parameters.sharing.mpsConfig.multiUser must be true or false"
    worst = GOOD | {f"unknown-{index}-{'x' * 60}": 1 for index in range(120)}
    said = refusal(api, claim(*[worst] * 32))
    assert said == "opaque.parameters may only contain apiVersion, kind, sharing, iommu"


def test_a_changed_device_class_is_checked_again(api: Api) -> None:
    made = api.create(thing("DeviceClass", {"config": entries(GOOD)}))
    name = made["metadata"]["name"]
    try:
        with pytest.raises(ApiStatusError, match=REFUSAL):
            api.patch("DeviceClass", name, {"spec": {"config": entries(BAD)}})
    finally:
        api.delete("DeviceClass", name)


@contextmanager
def policy_asleep(api: Api) -> Iterator[None]:
    """Nothing is refused meanwhile, as before the policy was installed."""

    def act(*actions: str) -> None:
        change = {"spec": {"validationActions": list(actions)}}
        path = f"{BINDINGS}/{POLICY}"
        api.request("PATCH", path, change, "application/merge-patch+json")

    act("Audit")
    try:
        wait_until(lambda: not refusal(api, claim(BAD)), "the policy to sleep", timeout=120)
        yield
    finally:
        act("Deny")
        wait_until(lambda: refusal(api, claim(BAD)), "the policy to be at work", timeout=120)


def test_a_bad_claim_from_before_the_policy_can_be_changed_and_deleted(
    api: Api, node: GpuNode
) -> None:
    body = claim(BAD)
    body["metadata"] |= {"finalizers": ["example.com/test"], "namespace": NAMESPACE}
    with policy_asleep(api):
        # Not by our own hands: a patch takes parameters with blanks in their JSON for changed.
        made = node.cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(body))
    name = json.loads(made)["metadata"]["name"]
    change: Object = {"metadata": {"labels": {"a": "b"}}}
    api.patch("ResourceClaim", name, change, NAMESPACE)
    api.delete("ResourceClaim", name, NAMESPACE)
    api.patch("ResourceClaim", name, {"metadata": {"finalizers": None}}, NAMESPACE)
    assert api.find("ResourceClaim", name, NAMESPACE) is None


def test_a_duplicate_key_passes_the_policy_but_not_the_driver(api: Api, node: GpuNode) -> None:
    (bad,) = [one for one in BAD_CONFIGS if one.name == "strategy-twice"]
    body = claim("here")
    body["metadata"] = {"name": "key-stands-twice"}
    text = json.dumps(body).replace('"here"', bad.json)
    path = f"{GROUP}/namespaces/{NAMESPACE}/resourceclaims"
    node.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=text)
    try:
        client = from_kubeconfig(Path(node.cluster.env["KUBECONFIG"]))
        stored = client.get_claim(NAMESPACE, "key-stands-twice", timeout=10)
        client.close()
        (config,) = stored["spec"]["devices"]["config"]
        with pytest.raises(InvalidConfigError, match=re.escape(bad.error)):
            decode(config["opaque"]["parameters"])
    finally:
        api.delete("ResourceClaim", "key-stands-twice", NAMESPACE)


def test_kubectl_shows_the_error_to_the_author(api: Api, node: GpuNode) -> None:
    with pytest.raises(TestbedError, match=re.escape(REFUSAL)):
        node.cluster.kubectl("create", "-f", "-", stdin=json.dumps(claim(BAD)))
