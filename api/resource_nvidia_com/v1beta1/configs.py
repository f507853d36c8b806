"""The configs that a claim or a DeviceClass may have for devices of this driver.

Field names and defaults are those of NVIDIA's DRA driver. The kernel's VFIO interfaces are
described in its Documentation/driver-api/vfio.rst.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resource_nvidia_com.model import ConfigModel
from resource_nvidia_com.v1beta1.names import API_VERSION, BackendPolicy
from resource_nvidia_com.v1beta1.sharing import GpuSharing, MigDeviceSharing


class GpuConfig(ConfigModel):
    """Config of whole GPUs. Without `sharing` only the claim's containers use them."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["GpuConfig"] = "GpuConfig"
    sharing: GpuSharing | None = None


class MigDeviceConfig(ConfigModel):
    """Config of MIG devices. Without `sharing` only the claim's containers use them."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["MigDeviceConfig"] = "MigDeviceConfig"
    sharing: MigDeviceSharing | None = None


class IommuConfig(ConfigModel):
    """The kernel's interface by which a virtual machine gets the GPU."""

    backend_policy: Annotated[
        BackendPolicy | None,
        Field(
            strict=False,
            description="Which device nodes the containers get; LegacyOnly if not set.",
        ),
    ] = None
    enable_api_device: Annotated[
        bool | None,
        Field(
            alias="enableAPIDevice",
            description="Whether they also get the interface's own node, /dev/vfio/vfio or "
            "/dev/iommu; false if not set.",
        ),
    ] = None


class VfioDeviceConfig(ConfigModel):
    """Config of GPUs that are passed through to virtual machines, and so are never shared."""

    sharing: ClassVar[None] = None

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["VfioDeviceConfig"] = "VfioDeviceConfig"
    iommu: IommuConfig | None = None

    @property
    def prefers_iommufd(self) -> bool:
        """Whether containers get the GPU's own VFIO device, if the kernel has IOMMUFD."""
        iommu = self.iommu or IommuConfig()
        return iommu.backend_policy is BackendPolicy.PREFER_IOMMU_FD

    @property
    def wants_api_device(self) -> bool:
        """Whether containers get the interface's own node as well."""
        return bool((self.iommu or IommuConfig()).enable_api_device)
