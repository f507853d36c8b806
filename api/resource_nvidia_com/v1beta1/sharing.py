"""How a claim's containers share its device: by time-slicing or MPS.

The part `sharing` of GpuConfig and MigDeviceConfig. Field names and defaults are those of NVIDIA's
DRA driver, group resource.nvidia.com/v1beta1, so a config that works there works here. Names are
parsed from text, which a strict enumeration would refuse.
"""

from typing import Annotated, ClassVar, Self

from pydantic import Field

from resource_nvidia_com.model import ConfigModel, Exclusion
from resource_nvidia_com.rules import Size, SizePerDevice
from resource_nvidia_com.v1beta1.names import Interval, SharingStrategy

Strategy = Annotated[
    SharingStrategy,
    Field(strict=False, description="How containers share the device."),
]

_NO_MPS_CONFIG = Exclusion(
    field="strategy",
    value=SharingStrategy.TIME_SLICING,
    forbidden="mpsConfig",
    text="cannot use MpsConfig with the 'TimeSlicing' strategy",
)
_NO_TIME_SLICING_CONFIG = Exclusion(
    field="strategy",
    value=SharingStrategy.MPS,
    forbidden="timeSlicingConfig",
    text="cannot use TimeSlicingConfig with the 'MPS' strategy",
)


class TimeSlicingConfig(ConfigModel):
    """Settings of strategy TimeSlicing."""

    interval: Annotated[
        Interval | None,
        Field(strict=False, description="How long a process may keep the GPU; Default if not set."),
    ] = None

    def normalise(self) -> Self:
        """Return the settings with the default interval filled in."""
        return self if self.interval else self.model_copy(update={"interval": Interval.DEFAULT})


class MpsConfig(ConfigModel):
    """Settings of strategy MPS. Limits are for pinned device memory, in whole MiB."""

    default_active_thread_percentage: Annotated[
        int | None,
        Field(
            ge=0, le=100, description="Percentage of a device's threads that one client may use."
        ),
    ] = None
    default_pinned_device_memory_limit: Annotated[
        Size | None,
        Field(description="Memory that one client may use of each device; at least 1Mi."),
    ] = None
    default_per_device_pinned_memory_limit: Annotated[
        SizePerDevice | None,
        Field(
            description="The same for single devices: by UUID, or by index among the devices under "
            "this config: GPUs in alphabetical order of UUIDs, MIG devices by GPU and place."
        ),
    ] = None
    multi_user: Annotated[
        bool | None,
        Field(description="Whether clients of several Unix users may share a device at a time."),
    ] = None


class GpuSharing(ConfigModel):
    """The sharing of a whole GPU."""

    exclusions: ClassVar[tuple[Exclusion, ...]] = (_NO_MPS_CONFIG, _NO_TIME_SLICING_CONFIG)

    strategy: Strategy
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None

    def normalise(self) -> Self:
        """Return it with the settings of its strategy filled in."""
        match self.strategy:
            case SharingStrategy.TIME_SLICING:
                settings = (self.time_slicing_config or TimeSlicingConfig()).normalise()
                return self.model_copy(update={"time_slicing_config": settings})
            case SharingStrategy.MPS:
                return self.model_copy(update={"mps_config": self.mps_config or MpsConfig()})


class MigDeviceSharing(ConfigModel):
    """The sharing of a MIG device: it has no time-slice of its own to set."""

    exclusions: ClassVar[tuple[Exclusion, ...]] = (_NO_MPS_CONFIG,)

    strategy: Strategy
    mps_config: MpsConfig | None = None

    def normalise(self) -> Self:
        """Return it with the settings of its strategy filled in."""
        if self.strategy is SharingStrategy.MPS and self.mps_config is None:
            return self.model_copy(update={"mps_config": MpsConfig()})
        return self
