"""The names of v1beta1, for code that reads no configs: it needs no models, so no pydantic."""

from enum import StrEnum
from typing import Final

API_VERSION: Final = "resource.nvidia.com/v1beta1"


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


class BackendPolicy(StrEnum):
    """The kernel's interfaces to VFIO devices: the values of `iommu.backendPolicy`."""

    LEGACY_ONLY = "LegacyOnly"
    PREFER_IOMMU_FD = "PreferIommuFD"
