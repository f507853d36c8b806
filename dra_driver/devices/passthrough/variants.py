"""Which VFIO driver a GPU needs: vfio-pci, or the variant that the kernel has for that card.

In: a device's modalias, and the kernel's modules.alias. Out: a driver's name. Grace Hopper, for
example, works only with `nvgrace-gpu-vfio-pci`. Rules: entries of variants begin with `vfio_pci:`
(Documentation/driver-api/vfio-pci-device-specific-driver-acceptance.rst); of those that match, the
one with the fewest wildcards counts.
"""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path

VFIO_PCI = "vfio-pci"
_PREFIX = "alias vfio_pci:"


def vfio_driver(
    modalias: str, files: Iterable[Path], has_driver: Callable[[str], bool]
) -> str | None:
    """Return the driver for a device; None if it is not loaded.

    `files` are the possible places of modules.alias; the first readable one is used. A module's
    name has underscores, while its driver's name may have dashes.
    """
    module = _variant(modalias, files)
    names = (VFIO_PCI,) if module is None else (module, module.replace("_", "-"))
    return next(filter(has_driver, names), None)


def module_for(modalias: str, files: Iterable[Path]) -> str:
    """Return the kernel module to load for a device."""
    return _variant(modalias, files) or VFIO_PCI


def _variant(modalias: str, files: Iterable[Path]) -> str | None:
    wanted = modalias.removeprefix("pci:")
    for path in files:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        matching = [
            (pattern.count("*"), module)
            for line in lines
            if line.startswith(_PREFIX)
            for pattern, _, module in [line.removeprefix(_PREFIX).partition(" ")]
            if fnmatchcase(wanted, pattern)
        ]
        return min(matching)[1].strip() if matching else None
    return None
