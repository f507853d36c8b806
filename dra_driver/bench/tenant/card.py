"""The GPU that does the work, by NVML: what it is, how busy it is, whether it is simulated.

NVML is only read. A simulated GPU is recognised by the file with its state, which is beside its
libnvidia-ml.so.1 and comes into containers with it: no work is timed there.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dra_driver.bench.model import Card, Usage, mean_of
from dra_driver.cdi.driver_edits import HOOKLESS_LIBRARIES
from dra_driver.devices.model import Gpu, MigDevice
from dra_driver.devices.nvml.gpm import GpmCount
from dra_driver.devices.nvml.library import LIBRARY, NvmlLibrary, find_library
from dra_driver.devices.nvml.rates import Busy, read_busy, read_clocks
from dra_driver.errors import DeviceError

SAMPLE_SECONDS = 0.25

_SIMULATED = "libnvidia-simulator.so.*"
_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
_JOIN_SECONDS = 15.0


class CardNvml:
    """One open NVML, and one of its GPUs. Close it after use."""

    def __init__(self, driver_root: Path, which: str = "0") -> None:
        """Open NVML for the GPU `which`, an index or UUID. Raises DeviceError without it."""
        path = _library(driver_root)
        self._is_simulated = any(path.parent.glob(_SIMULATED))
        self.library_folder = path.parent
        self._nvml = NvmlLibrary(path)
        self._nvml.open()
        try:
            self._facts = self._find(which)
        except BaseException:
            self._nvml.close()
            raise

    def _find(self, which: str) -> Gpu:
        number = self._nvml.gpu_count()
        if which.isdecimal():
            if int(which) < number:
                return self._nvml.gpu_facts(int(which))
        else:
            for facts in map(self._nvml.gpu_facts, range(number)):
                if facts.uuid == which:
                    return facts
        raise DeviceError(
            f"there is no GPU {which}: NVML counts {number}; `nvidia-smi -L` lists them"
        )

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return str(self._facts.uuid)

    @property
    def capability(self) -> tuple[int, int]:
        """The GPU's compute capability."""
        return self._facts.cuda_compute_capability

    @property
    def is_divided(self) -> bool:
        """Whether the GPU is in MIG mode."""
        return self._facts.mig_mode.value == "enabled"

    @property
    def mig_problem(self) -> str:
        """Why the GPU's MIG devices cannot be listed; empty if they can."""
        return (self._facts.mig and self._facts.mig.problem) or ""

    @property
    def mig_devices(self) -> Mapping[str, tuple[str, ...]]:
        """The UUIDs of the GPU's MIG devices, by their profiles."""
        uuids: dict[str, tuple[str, ...]] = {}
        for instance in self._facts.mig.instances if self._facts.mig is not None else ():
            if isinstance(instance, MigDevice):
                name = instance.profile.name
                uuids[name] = (*uuids.get(name, ()), str(instance.uuid))
        return uuids

    def card(self) -> Card:
        """Return what the card is and how it is set, as NVML reports it now."""
        facts, clocks = self._facts, self._nvml.ask_gpu(self.uuid, read_clocks)
        power = clocks.power_limit_milliwatts
        mode = self._nvml.compute_mode(self.uuid)
        return Card(
            name=facts.product_name,
            uuid=self.uuid,
            driver_version=self._nvml.driver_version(),
            memory_mib=None if facts.memory_bytes is None else facts.memory_bytes >> 20,
            sm_clock_mhz=clocks.sm,
            most_sm_clock_mhz=clocks.most_sm,
            memory_clock_mhz=clocks.memory,
            power_limit_watts=None if power is None else power / 1000,
            compute_mode="" if mode is None else _COMPUTE_MODES.get(mode, str(mode)),
            is_simulated=self._is_simulated,
        )

    def busy(self) -> Busy:
        """Return how busy the card is."""
        return self._nvml.ask_gpu(self.uuid, read_busy)

    def count(self, visible: str = "") -> GpmCount | None:
        """Return a counter of how much of the GPU is used; None if a tenant's part is unknown.

        In MIG mode it is of the MIG device that is `visible` (CUDA_VISIBLE_DEVICES), or else of
        the only one that this process sees.
        """
        if not self.is_divided:
            return GpmCount(self._nvml, self.uuid)
        seen = self._nvml.gpu_load(self._facts.index).migs
        meant = [card for card in seen if card.uuid == visible] or seen
        return GpmCount(self._nvml, self.uuid, meant[0].gpu_instance) if len(meant) == 1 else None

    def close(self) -> None:
        """Close NVML."""
        self._nvml.close()


def _library(driver_root: Path) -> Path:
    """Return NVML's library: where containers without hooks have it, else in the driver root."""
    in_containers = Path(HOOKLESS_LIBRARIES, LIBRARY)
    if driver_root == Path("/") and in_containers.exists():
        return in_containers
    return find_library(driver_root)


class Watch:
    """Samples how busy a card is, from `start` to `stop`."""

    def __init__(self, busy: Callable[[], Busy], every: float = SAMPLE_SECONDS) -> None:
        """Take the function that queries the card; it is not called yet."""
        self._busy = busy
        self._every = every
        self._samples: list[Busy] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="card-watch", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> Usage:
        """Stop sampling; return what was seen."""
        self._over.set()
        self._thread.join(_JOIN_SECONDS)
        return summarised(tuple(self._samples))

    def _look(self) -> None:
        # A card that does not answer is not measured, and its tenants continue. The first sample is
        # of the beginning and the last of the end, because energy is their difference.
        due = time.monotonic()
        is_over = False
        while not is_over:
            due += self._every
            is_over = self._over.wait(max(0.0, due - time.monotonic())) if self._samples else False
            try:
                self._samples.append(self._busy())
            except DeviceError:
                return


def summarised(samples: tuple[Busy, ...]) -> Usage:
    """Return the means of shares and clock, the most memory, and the energy between the ends."""
    if not samples:
        return Usage()
    energies = [
        sample.energy_millijoules for sample in samples if sample.energy_millijoules is not None
    ]
    memory = [
        sample.memory_used_bytes for sample in samples if sample.memory_used_bytes is not None
    ]
    clock = mean_of(sample.sm_clock for sample in samples)
    return Usage(
        sm_percent=mean_of(sample.sm_percent for sample in samples),
        memory_percent=mean_of(sample.memory_percent for sample in samples),
        memory_used_mib=max(memory) >> 20 if memory else None,
        energy_joules=_energy_joules(energies),
        sm_clock_mhz=None if clock is None else round(clock),
        samples=len(samples),
    )


def _energy_joules(counted: list[int]) -> float | None:
    """Return what was used between the ends; None if the counter was reset meanwhile."""
    if len(counted) < 2 or counted[-1] < counted[0]:
        return None
    return (counted[-1] - counted[0]) / 1000
