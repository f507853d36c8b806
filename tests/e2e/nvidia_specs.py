"""CDI specs of claims as NVIDIA's own DRA driver writes them.

That driver has them made by the library of NVIDIA's container toolkit, in NVML mode; here the
toolkit's own program makes them, of the same machine. What the driver does to them is done here:
names of claims, the whole GPU's edits for a MIG device with its two capabilities, the hooks that
its version of the library knows, and the hook program's copy in its own folder.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from testbed.commands import run
from testbed.containers import Containers

from dra_driver.claims.model.record import ClaimRecord

Spec = dict[str, Any]
VENDOR = "k8s.gpu.nvidia.com"
HOOKS = (
    "create-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
)


class NvidiaSpecs:
    """Specs for claims on a machine; `folder` is the driver's own, below the kubelet's plugins.

    To be made while no GPU is in MIG mode: the toolkit reads what MIG devices there are from this
    machine's /proc, and not from the simulated one's. What it says of a GPU is the same.
    """

    def __init__(self, containers: Containers, driver_root: Path, folder: Path) -> None:
        hook = folder / "nvidia-cdi-hook"
        shutil.copy(containers.hook, hook)
        generate = (containers.program("nvidia-ctk"), "cdi", "generate", "--mode=nvml")
        kind = (f"--vendor={VENDOR}", "--class=claim", "--device-name-strategy=uuid")
        places = (f"--driver-root={driver_root}", f"--nvidia-cdi-hook-path={hook}")
        self._made: Spec = yaml.safe_load(run((*generate, *kind, *places)))
        self._of_gpus = {device["name"]: _known(device) for device in self._made["devices"]}

    def of(self, record: ClaimRecord, ours: Mapping[str, Any], env: Sequence[str]) -> str:
        """The spec of a claim, of which this driver has a record and has written a spec.

        `env` is added to what each device gives to containers.
        """
        capabilities = {
            device["name"]: [
                node
                for node in device["containerEdits"].get("deviceNodes", ())
                if "/nvidia-caps/" in node["path"]
            ]
            for device in ours["devices"]
        }
        devices = []
        for entry in record.devices:
            name = f"{record.ref.uid}-{entry.name}"
            edits = self._of_gpus[entry.device.gpu]["containerEdits"]
            nodes = [*edits["deviceNodes"], *capabilities[name]]
            edits = {**edits, "deviceNodes": nodes, "env": list(env)}
            devices.append({"name": name, "containerEdits": edits})
        spec = {**_known(self._made), "devices": devices}
        return yaml.safe_dump(spec, explicit_start=True, sort_keys=False)


def _known(holder: Spec) -> Spec:
    """What holds edits, without hooks that the driver's version of the library does not know."""
    edits = dict(holder["containerEdits"])
    hooks = [one for one in edits.pop("hooks", ()) if one["args"][1] in HOOKS]
    return {**holder, "containerEdits": edits | ({"hooks": hooks} if hooks else {})}
