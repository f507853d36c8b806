"""MigDeviceConfig: what a claim or a DeviceClass may say about MIG devices."""

from typing import Literal, Self

from resource_nvidia_com.model import ConfigModel
from resource_nvidia_com.v1beta1.names import API_VERSION
from resource_nvidia_com.v1beta1.sharing import MigDeviceSharing


class MigDeviceConfig(ConfigModel):
    """Config of MIG devices. Without `sharing` the claim's containers have them for themselves."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["MigDeviceConfig"] = "MigDeviceConfig"
    sharing: MigDeviceSharing | None = None

    def normalise(self) -> Self:
        """Return it with every default filled in."""
        if self.sharing is None:
            return self
        return self.model_copy(update={"sharing": self.sharing.normalise()})
