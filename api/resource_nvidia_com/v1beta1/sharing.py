"""How the containers of a claim share its device: time-slicing or MPS.

The part `sharing` of GpuConfig and MigDeviceConfig. Field names, defaults and the texts of the
rules are those of NVIDIA's DRA driver, group resource.nvidia.com/v1beta1, so that a config that
works there works here and a refusal reads the same. What the settings do is not here.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from resource_nvidia_com.quantity import Quantity, quantity_bytes
from resource_nvidia_com.v1beta1.base import ConfigModel

_MIB = 1024 * 1024


class SharingStrategy(StrEnum):
    """The values of `sharing.strategy`."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class Interval(StrEnum):
    """How long a process may keep the GPU: the values of `timeSlicingConfig.interval`."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"


def _known_strategy(value: object) -> object:
    if isinstance(value, str) and value not in list(SharingStrategy):
        raise ValueError(
            f"unknown GPU sharing strategy: {value}, supported GPU sharing strategies: "
            f"{', '.join(SharingStrategy)}"
        )
    return value


def _known_interval(value: object) -> object:
    if isinstance(value, str) and value not in list(Interval):
        raise ValueError(
            f"unknown time-slice interval: {value}, supported time-slice intervals: "
            f"{', '.join(Interval)}"
        )
    return value


def _percentage(value: int) -> int:
    if value < 0:
        raise ValueError("active thread percentage must not be negative")
    if value > 100:
        raise ValueError("active thread percentage must not be greater than 100")
    return value


def _default_limit(value: str) -> str:
    if quantity_bytes(value) < _MIB:
        raise ValueError(f"invalid limit: default value set too low: {value}: at least 1Mi")
    return value


def _limits(values: dict[str, str]) -> dict[str, str]:
    for device, limit in values.items():
        # A whole GPU or MIG device by UUID, or its place in the claim's sorted UUIDs.
        if not device.startswith(("GPU-", "MIG-")) and not device.isdecimal():
            raise ValueError(f"invalid device: unable to parse key as an integer: {device}")
        if quantity_bytes(limit) < _MIB:
            raise ValueError(f"invalid limit: value set too low: {device}: {limit}: at least 1Mi")
    return values


# Strict mode would refuse a string where an enum is wanted; JSON has nothing but strings.
Strategy = Annotated[SharingStrategy, Field(strict=False), BeforeValidator(_known_strategy)]
Percentage = Annotated[int, AfterValidator(_percentage)]


class TimeSlicingConfig(ConfigModel):
    """Settings of strategy TimeSlicing."""

    interval: Annotated[Interval, Field(strict=False), BeforeValidator(_known_interval)] | None = (
        None
    )

    def normalise(self) -> "TimeSlicingConfig":
        """Return it with the interval filled in: Default."""
        return self if self.interval else TimeSlicingConfig(interval=Interval.DEFAULT)


class MpsConfig(ConfigModel):
    """Settings of strategy MPS. Limits are of pinned device memory, kept to whole MiB."""

    default_active_thread_percentage: Percentage | None = None
    default_pinned_device_memory_limit: (
        Annotated[Quantity, AfterValidator(_default_limit)] | None
    ) = None
    default_per_device_pinned_memory_limit: (
        Annotated[dict[str, Quantity], AfterValidator(_limits)] | None
    ) = None
    multi_user: bool | None = None


class GpuSharing(ConfigModel):
    """The sharing of a whole GPU."""

    strategy: Strategy
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None

    @model_validator(mode="after")
    def _settings_belong_to_the_strategy(self) -> Self:
        match self.strategy:
            case SharingStrategy.TIME_SLICING if self.mps_config is not None:
                raise ValueError("cannot use MpsConfig with the 'TimeSlicing' strategy")
            case SharingStrategy.MPS if self.time_slicing_config is not None:
                raise ValueError("cannot use TimeSlicingConfig with the 'MPS' strategy")
            case _:
                return self

    def normalise(self) -> "GpuSharing":
        """Return it with the settings of its strategy filled in."""
        match self.strategy:
            case SharingStrategy.TIME_SLICING:
                settings = (self.time_slicing_config or TimeSlicingConfig()).normalise()
                return self.model_copy(update={"time_slicing_config": settings})
            case SharingStrategy.MPS:
                return self.model_copy(update={"mps_config": self.mps_config or MpsConfig()})


class MigDeviceSharing(ConfigModel):
    """The sharing of a MIG device: it has no time-slice of its own to set."""

    strategy: Strategy
    mps_config: MpsConfig | None = None

    @model_validator(mode="after")
    def _settings_belong_to_the_strategy(self) -> Self:
        if self.strategy is SharingStrategy.TIME_SLICING and self.mps_config is not None:
            raise ValueError("cannot use MpsConfig with the 'TimeSlicing' strategy")
        return self

    def normalise(self) -> "MigDeviceSharing":
        """Return it with the settings of its strategy filled in."""
        if self.strategy is SharingStrategy.MPS and self.mps_config is None:
            return self.model_copy(update={"mps_config": MpsConfig()})
        return self
