"""Policy and `validate` refuse the claims that the driver refuses whatever devices they get."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import make
from dra_driver.admin.validate.meant_for import WrittenConfig, in_vain
from dra_driver.claims.model.claim import parse_claim
from dra_driver.claims.model.config import group_by_config
from dra_driver.devices.device import DeviceKind
from dra_driver.errors import ConfigError
from policies import refusal
from resource_nvidia_com.decode import MODELS

KINDS = {
    "gpu.nvidia.com": [DeviceKind.GPU],
    "mig.nvidia.com": [DeviceKind.MIG],
    "vfio.gpu.nvidia.com": [DeviceKind.VFIO],
    "gpu.resource.nvidia.com": [DeviceKind.GPU, DeviceKind.MIG],
    "any.example.com": [*DeviceKind, None],
}
"""The kinds of devices that a class gives; None: of another driver."""

CLASSES = st.sampled_from([*KINDS])


@st.composite
def asked(draw: st.DrawFn, name: str) -> Any:
    if draw(st.booleans()):
        subs = enumerate(draw(st.lists(CLASSES, min_size=1, max_size=2)))
        made = [{"name": f"s{number}", "deviceClassName": one} for number, one in subs]
        return {"name": name, "firstAvailable": made}
    admin = {"adminAccess": True} if draw(st.integers(0, 5)) == 0 else {}
    return {"name": name, "exactly": {"deviceClassName": draw(CLASSES), **admin}}


requests = st.integers(1, 3).flatmap(lambda n: st.tuples(*(asked(f"r{at}") for at in range(n))))
configs = st.lists(
    st.builds(
        lambda kind, named: make.config(*named, kind=kind),
        st.sampled_from([*MODELS]),
        st.lists(st.integers(0, 8), max_size=2),
    ),
    min_size=1,
    max_size=3,
)


def got(request: Any) -> Iterator[tuple[str, bool, DeviceKind | None]]:
    """What a request may get: name, admin access, kind of device."""
    for one in request.get("firstAvailable", [request.get("exactly")]):
        name = f"{request['name']}/{one['name']}" if "name" in one else request["name"]
        for kind in KINDS[one["deviceClassName"]]:
            yield name, one.get("adminAccess", False), kind


def applied(written: Any, devices: Any) -> set[str] | None:
    """The kinds of the configs that apply if the claim gets these devices; None: it is refused."""
    claim = make.claim_object(configs=written)
    claim["status"]["allocation"]["devices"]["results"] = [
        {"request": name, "driver": "gpu.nvidia.com", "pool": "n", "device": f"d{number}"}
        | ({"adminAccess": True} if admin else {})
        for number, (name, admin, kind) in enumerate(devices)
        if kind is not None
    ]
    kinds = {f"d{number}": kind for number, (_, _, kind) in enumerate(devices)}
    try:
        groups = group_by_config(parse_claim(claim, "gpu.nvidia.com"), kinds)
    except ConfigError:
        return None
    return {config.kind for config, _ in groups if config is not None}


@given(requests, configs)
def test_policy_validate_and_driver_agree(requests: Any, configs: Any) -> None:
    known = sorted({part for one in requests for name, *_ in got(one) for part in (name, name[:2])})
    for one in configs:
        one["requests"] = sorted({known[int(at) % len(known)] for at in one["requests"]})
    devices = {"requests": list(requests), "config": configs}
    body = {"metadata": {"name": "c"}, "spec": {"devices": devices}}
    is_refused = refusal("claim-configs", body) is not None
    kinds = [one["opaque"]["parameters"]["kind"] for one in configs]
    written = [
        WrittenConfig(kind=kind, requests=tuple(one["requests"]))
        for kind, one in zip(kinds, configs, strict=True)
    ]
    assert is_refused == bool(list(in_vain(list(requests), written)))
    ways = [applied(configs, outcome) for outcome in product(*map(got, requests))]
    if is_refused:
        # Prepare refuses it, or a config has no effect: of alternatives Prepare sees only one.
        assert not set(kinds) <= {kind for way in ways for kind in way or ()}
    elif not any(word in str(requests) for word in ("adminAccess", "any.example.com")):
        assert any(way is not None for way in ways)
