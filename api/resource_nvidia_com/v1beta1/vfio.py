"""VfioDeviceConfig: GPUs handed to virtual machines.

Read and checked like the others, so that the refusal of a wrong one says what is wrong with it.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from resource_nvidia_com.rules import Checked, Flag, OneOf
from resource_nvidia_com.v1beta1.base import API_VERSION, ConfigModel

UNSUPPORTED: Final = (
    "VfioDeviceConfig is not supported: this driver gives GPUs to containers, not to virtual "
    "machines; remove that config"
)
"""Why even a right one is refused."""


class BackendPolicy(StrEnum):
    """Which of the kernel's two interfaces to an IOMMU a virtual machine gets."""

    LEGACY_ONLY = "LegacyOnly"
    PREFER_IOMMU_FD = "PreferIommuFD"


class Iommu(ConfigModel):
    """Settings of the IOMMU."""

    backend_policy: Annotated[
        BackendPolicy | None,
        Checked(
            OneOf(
                values=BackendPolicy,
                singular="IOMMU backend policy",
                plural="IOMMU backend policies",
                blank=True,  # an empty string is NVIDIA's "not set"
            )
        ),
        Field(description="Interface of the kernel to the IOMMU; LegacyOnly if not set."),
    ] = None
    enable_api_device: Annotated[
        bool | None,
        Checked(Flag()),
        Field(alias="enableAPIDevice", description="Whether the API's device node is given too."),
    ] = None

    def normalise(self) -> "Iommu":
        """Return it with every default filled in."""
        return self.model_copy(
            update={
                "backend_policy": self.backend_policy or BackendPolicy.LEGACY_ONLY,
                "enable_api_device": bool(self.enable_api_device),
            }
        )


class VfioDeviceConfig(ConfigModel):
    """Config of GPUs bound to vfio-pci."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["VfioDeviceConfig"] = "VfioDeviceConfig"
    iommu: Iommu | None = None

    def normalise(self) -> "VfioDeviceConfig":
        """Return it with every default filled in."""
        return self.model_copy(update={"iommu": (self.iommu or Iommu()).normalise()})
