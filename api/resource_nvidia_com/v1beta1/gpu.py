"""GpuConfig: what a claim or a DeviceClass may say about whole GPUs."""

from dataclasses import dataclass, replace
from typing import Literal

from resource_nvidia_com.v1beta1.base import API_VERSION, ConfigModel
from resource_nvidia_com.v1beta1.sharing import GpuSharing


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConfig(ConfigModel):
    """Config of whole GPUs. Without `sharing` the claim's containers have them for themselves."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["GpuConfig"] = "GpuConfig"
    sharing: GpuSharing | None = None

    def normalise(self) -> "GpuConfig":
        """Return it with every default filled in."""
        if self.sharing is None:
            return self
        return replace(self, sharing=self.sharing.normalise())
