"""The part of `dra-driver status` on devices that claims have and that no longer exist.

In: the GPU driver's files below /proc, which list its GPUs and have a capability for each MIG
device. Out: what happened to a device, or nothing if the files do not show it.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.device import Device, Mig, Vfio
from dra_driver.host.files import text_of

_FIELD = re.compile(r"^(GPU UUID|Device Minor):\s*(\S+)\s*$", re.MULTILINE)
_HIDDEN = "?"
"""In the UUID of a GPU that no program has opened yet."""


def gone(records: Iterable[ClaimRecord], proc_root: Path) -> dict[tuple[str, str], str]:
    """Return what happened to devices that are gone, by the claim's UID and the device's name."""
    nvidia = proc_root / "driver/nvidia"
    gpus = [dict(_FIELD.findall(text_of(path))) for path in nvidia.glob("gpus/*/information")]
    minors = {gpu.get("GPU UUID", _HIDDEN): gpu.get("Device Minor", "") for gpu in gpus}
    if not minors or any(_HIDDEN in uuid for uuid in minors):
        return {}
    return {
        (record.ref.uid, entry.name): why
        for record in records
        for entry in record.devices
        if (why := _why_gone(entry.device, minors, nvidia / "capabilities"))
    }


def _why_gone(device: Device, minors: Mapping[str, str], capabilities: Path) -> str | None:
    base = device.base
    if isinstance(base, Vfio):
        return None
    if base.gpu not in minors:
        return f"{base.gpu} was removed from the machine, or from the GPU driver"
    if not isinstance(base, Mig) or base.instance is None:
        return None
    migs = capabilities / f"gpu{minors[base.gpu]}/mig"
    ids = base.instance
    if (
        not capabilities.is_dir()
        or (migs / f"gi{ids.gpu_instance}/ci{ids.compute_instance}/access").exists()
    ):
        return None
    return f"{ids.uuid} was destroyed by others, or its GPU was reset"
