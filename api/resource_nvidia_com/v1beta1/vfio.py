"""VfioDeviceConfig: GPUs handed to virtual machines.

Read and checked like the others, so that the refusal of a wrong one says what is wrong with it.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from resource_nvidia_com.v1beta1.base import API_VERSION, ConfigModel


class BackendPolicy(StrEnum):
    """Which of the kernel's two interfaces to an IOMMU a virtual machine gets."""

    LEGACY_ONLY = "LegacyOnly"
    PREFER_IOMMU_FD = "PreferIommuFD"


def _known_policy(value: object) -> object:
    if value == "":  # an empty string is NVIDIA's "not set"
        return BackendPolicy.LEGACY_ONLY
    if isinstance(value, str) and value not in list(BackendPolicy):
        raise ValueError(
            f"unknown IOMMU backend policy: {value}, supported IOMMU backend policies: "
            f"{', '.join(BackendPolicy)}"
        )
    return value


class Iommu(ConfigModel):
    """Settings of the IOMMU."""

    backend_policy: Annotated[
        BackendPolicy, Field(strict=False), BeforeValidator(_known_policy)
    ] = BackendPolicy.LEGACY_ONLY
    enable_api_device: bool | None = Field(default=None, alias="enableAPIDevice")

    def normalise(self) -> "Iommu":
        """Return it with every default filled in."""
        return self.model_copy(update={"enable_api_device": bool(self.enable_api_device)})


class VfioDeviceConfig(ConfigModel):
    """Config of GPUs bound to vfio-pci."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["VfioDeviceConfig"] = "VfioDeviceConfig"
    iommu: Iommu | None = None

    def normalise(self) -> "VfioDeviceConfig":
        """Return it with every default filled in."""
        return self.model_copy(update={"iommu": (self.iommu or Iommu()).normalise()})
