"""Options that the sub-commands of `dra-driver simulate` share: the machine, and its GPU."""

from pathlib import Path

from dra_driver.command_line import option

_WHICH_GPU = "Index, UUID, PCI address or minor:N."

# Not below /run: it is a small tmpfs, and device nodes do not work on it.
ROOT = option(default=Path("/var/lib/dra-driver/simulated-root"), help="The driver root, a folder.")
GPU = option(help=_WHICH_GPU)
OPTIONAL_GPU = option(default="", help=_WHICH_GPU)
