"""MigDeviceConfig: what a claim or a DeviceClass may say about MIG devices."""

from dataclasses import dataclass, replace
from typing import Literal

from resource_nvidia_com.v1beta1.base import API_VERSION, ConfigModel
from resource_nvidia_com.v1beta1.sharing import MigDeviceSharing


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDeviceConfig(ConfigModel):
    """Config of MIG devices. Without `sharing` the claim's containers have them for themselves."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["MigDeviceConfig"] = "MigDeviceConfig"
    sharing: MigDeviceSharing | None = None

    def normalise(self) -> "MigDeviceConfig":
        """Return it with every default filled in."""
        if self.sharing is None:
            return self
        return replace(self, sharing=self.sharing.normalise())
