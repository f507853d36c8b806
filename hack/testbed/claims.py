"""ResourceClaims, their requests, and their allocations if there is no scheduler."""

from testbed.api import Object, thing
from testbed.driver import DRIVER_NAME


def gpu_config(**sharing: object) -> Object:
    """Return a GpuConfig with this `sharing`."""
    version = "resource.nvidia.com/v1beta1"
    return {"apiVersion": version, "kind": "GpuConfig", "sharing": sharing}


def mig_profile(name: str) -> list[Object]:
    """Return the selectors of a request for a MIG device of a profile, such as `1g.10gb`."""
    expression = f"device.attributes['{DRIVER_NAME}'].profile == '{name}'"
    return [{"cel": {"expression": expression}}]


def claim(name: str, *, device_class: str = DRIVER_NAME, **request: object) -> Object:
    """Return a claim of one request named `gpu`; keywords go into its `exactly`."""
    exactly = {"deviceClassName": device_class, **request}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return thing("ResourceClaim", name, spec=spec)


def opaque(*configs: object, driver: str = DRIVER_NAME) -> list[Object]:
    """Return a claim's `config` with these, for a driver."""
    return [{"opaque": {"driver": driver, "parameters": config}} for config in configs]


def allocation(
    node: str, *devices: str, admin_access: bool = False, config: Object | None = None
) -> Object:
    """Return the `status` that a scheduler writes when it allocates devices of a node.

    The scheduler copies the configs of the claim's spec into it; here it is `config`.
    """
    result: Object = {"request": "gpu", "driver": DRIVER_NAME, "pool": node}
    if admin_access:
        result["adminAccess"] = True
    opaque = {"driver": DRIVER_NAME, "parameters": config}
    configs = [{"source": "FromClaim", "requests": [], "opaque": opaque}] if config else []
    selector = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "allocation": {
            "devices": {
                "results": [result | {"device": device} for device in devices],
                "config": configs,
            },
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [selector]}]},
        }
    }
