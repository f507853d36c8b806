"""Several configs in one claim: each device gets its own config's domain and limits, no other's."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import make
from dra_driver.devices.device import DeviceKey, DeviceKind
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.mps import Mps
from resource_nvidia_com.decode import decode

MIGS = [make.mig_device(0, start=start) for start in range(7)]
DIVIDED = make.gpu(0, mig=make.mig(*MIGS))
WHOLES = [make.gpu(minor) for minor in range(1, 4)]


def unit(name: str, gpu: Any, found: Any) -> Unit:
    return Unit(name=name, request=name, gpu=gpu, device=make.device(found))


UNITS = (
    *(unit(f"mig-{number}", DIVIDED, one) for number, one in enumerate(MIGS)),
    *(unit(f"gpu-{one.minor}", one, one) for one in WHOLES),
)


@st.composite
def claims(draw: st.DrawFn) -> list[tuple[Group, int]]:
    """The groups of a claim, each with the percentage and the MiB that its config has."""
    units = draw(st.lists(st.sampled_from(UNITS), min_size=1, unique_by=lambda one: one.name))
    of_config = [draw(st.integers(0, 3)) for _ in units]
    groups = []
    for number in sorted(set(of_config)):
        mine = [one for one, config in zip(units, of_config, strict=True) if config == number]
        for kind in DeviceKind:
            chosen = tuple(one for one in mine if one.device.kind is kind)
            if chosen:
                limit = 10 * len(groups) + 10
                groups.append((Group(claim="uid", units=chosen, config=config(kind, limit)), limit))
    return groups


def config(kind: DeviceKind, limit: int) -> Any:
    settings = {
        "defaultActiveThreadPercentage": limit,
        "defaultPinnedDeviceMemoryLimit": f"{limit}Mi",
    }
    wanted = make.config(
        kind="GpuConfig" if kind is DeviceKind.GPU else "MigDeviceConfig",
        sharing={"strategy": "MPS", "mpsConfig": settings},
    )
    return decode(wanted["opaque"]["parameters"]).normalise()


@given(claims())
def test_no_device_gets_the_daemon_or_the_limits_of_another_config(
    claim: list[tuple[Group, int]],
) -> None:
    requests = DomainRequests(Path("/mps"), lambda: 0.0)
    mps = Mps(requests, lambda: 0.0, ready_seconds=1.0)
    steps = mps.plan([group for group, _ in claim], 0.0)
    assert len({step.domain for step in steps}) == len(steps)
    served = [one.uuid for step in steps for one in step.wanted.devices]
    assert sorted(served) == sorted(one.uuid for group, _ in claim for one in group.units)

    edits = {key: (step, one) for step in steps for key, one in mps.edits(step).items()}
    for group, limit in claim:
        for one in group.units:
            step, edit = edits[DeviceKey(one.uuid)]
            (device,) = (each for each in step.wanted.devices if each.uuid == one.uuid)
            assert (device.kind, device.pinned_memory_mib) == (one.device.kind, limit)
            pipe = str(requests.paths(step.domain).pipe)
            assert pipe in {mount.host_path for mount in edit.mounts}
            most = step.active_thread_percentage
            env = dict(each.split("=", 1) for each in edit.env)
            assert int(env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(most))) == limit
