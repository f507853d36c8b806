"""What NVML says about NVLink: which links of a GPU are up, where they lead, and its fabric.

In: handles of the open library. Out: `NvLink` and `Fabric` values; devices/nvlink.py combines them.
Each link takes several calls, so links are read only now and then, and apart from everything else:
a link that cannot be read or that hangs does not hide its GPU. Rules (nvml.h): the answer is
NOT_SUPPORTED for a link that a card lacks, and INVALID_ARGUMENT beyond the last possible link. The
state is a field with the link's number as its scope, or a separate call in drivers that lack the
field. In a virtual machine, the other end may be known as a switch and have no address.
"""

import uuid as uuids
from collections.abc import Callable
from ctypes import byref
from functools import partial
from typing import Any

import pynvml
from msgspec import Struct

from dra_driver.devices.model import Fabric, GpuUuid, NvLink, PciAddress
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.nvml.errors import LOST_CODES, nvml_errors, told
from dra_driver.devices.pci import pci_address
from dra_driver.errors import DeviceError

LOOKS = 10
"""How many looks at a GPU share one reading of its links, unless there is a sign of change."""


class Wiring(Struct, frozen=True, kw_only=True):
    """How a GPU is joined to others: its links in order of their numbers, and its fabric."""

    links: tuple[NvLink, ...] = ()
    fabric: Fabric | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether there are links but none is up."""
        return bool(self.links) and not any(link.is_active for link in self.links)


class NvLinkReader:
    """Reads the links of GPUs and remembers them. For one thread; `forget` is for any."""

    def __init__(self, calls: NvmlCalls) -> None:
        self._calls = calls
        self._known: dict[GpuUuid, Wiring] = {}
        self._looks: dict[GpuUuid, int] = {}

    def forget(self) -> None:
        """Read all links at the next look: the library is opened again."""
        self._looks.clear()

    def wiring(
        self,
        index: int,
        uuid: GpuUuid,
        *,
        fabric: Fabric | None,
        in_mig_mode: bool,
        handle: Callable[[], object],
    ) -> Wiring:
        """Return how a GPU is joined now or was a few looks ago; for a silent GPU, what is known.

        If no link is up, they are read at each look, because they may be about to come up. In MIG
        mode a GPU does not use its links, so what was known before is kept: MIG devices of claims
        come and go, but the links stay. `index` is the subject of calls about the GPU.
        """
        known, looks = self._known.get(uuid), self._looks.get(uuid, 0)
        if known is not None and in_mig_mode:
            return known
        if known is not None and looks and known.fabric == fabric and not known.is_waiting:
            self._looks[uuid] = looks - 1
            return known
        try:
            with nvml_errors():
                links = self._calls.about(f"{index} NVLink", lambda: read_links(handle()))
        except DeviceError:  # tried again at the next look
            return Wiring(links=known.links if known is not None else (), fabric=fabric)
        self._looks[uuid] = LOOKS - 1
        self._known[uuid] = wiring = Wiring(links=links, fabric=fabric)
        return wiring


def read_fabric(handle: object) -> Fabric | None:
    """Return a GPU's part in its fabric; None if the driver does not say.

    Raises NVMLError only if the GPU is out of reach.
    """
    info = told(fabric_info, handle)
    if info is None:
        return None
    cluster = uuids.UUID(bytes=bytes(info.clusterUuid))
    return Fabric(
        state=int(info.state),
        status=int(info.status),
        cluster=str(cluster) if cluster.int else None,
        clique=int(info.cliqueId),
    )


def fabric_info(handle: object) -> Any:
    """Return what NVML says about a GPU's fabric. Raises NVMLError."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    return info


def read_links(handle: object) -> tuple[NvLink, ...]:
    """Return the links that could lead to another GPU, in order of their numbers.

    Raises NVMLError only if the GPU is out of reach.
    """
    numbers = _numbers(handle)
    states = _states(handle, numbers)
    links = (_link(handle, number, is_active=states[number]) for number in numbers)
    return tuple(link for link in links if link is not None)


def _numbers(handle: object) -> list[int]:
    """Return the numbers of the links that can carry peer access.

    Asking for this makes the driver bring up links that are still at rest, so it comes first.
    """
    numbers = []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkCapability(
                handle, number, pynvml.NVML_NVLINK_CAP_P2P_SUPPORTED
            ):
                numbers.append(number)
        except pynvml.NVMLError as error:
            if error.value in LOST_CODES:
                raise
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                break
    return numbers


def _states(handle: object, numbers: list[int]) -> dict[int, bool]:
    if not numbers:
        return {}
    field = pynvml.NVML_FI_DEV_NVLINK_GET_STATE
    wanted = [(field, number) for number in numbers]
    values = told(lambda gpu: pynvml.nvmlDeviceGetFieldValues(gpu, wanted), handle) or ()
    states = {
        int(value.scopeId): value.value.uiVal == pynvml.NVML_FEATURE_ENABLED
        for value in values
        if value.nvmlReturn == pynvml.NVML_SUCCESS
    }
    for number in numbers:
        if number not in states:
            state = told(partial(pynvml.nvmlDeviceGetNvLinkState, link=number), handle)
            states[number] = state == pynvml.NVML_FEATURE_ENABLED
    return states


def _link(handle: object, number: int, *, is_active: bool) -> NvLink | None:
    """Return a link; None if it leads to a CPU."""
    if not is_active:
        return NvLink(number=number, is_active=False)
    kind = told(lambda gpu: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, number), handle)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU:
        return None
    pci = told(lambda gpu: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, number), handle)
    return NvLink(
        number=number,
        is_active=True,
        peer=_address(pci) if kind != pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else None,
        to_switch=kind != pynvml.NVML_NVLINK_DEVICE_TYPE_GPU,
    )


def _address(pci: Any) -> PciAddress | None:
    """Return the address of the other end; None if this is a virtual machine that cannot see it."""
    try:
        return pci_address(pci.busId) if pci is not None else None
    except ValueError:
        return None
