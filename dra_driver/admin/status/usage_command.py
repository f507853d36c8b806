"""`dra-driver usage`: which containers and processes use this node's GPUs, and how much.

In: flags. Out: the text or document that usage.py builds.
"""

import sys
from pathlib import Path

from dra_driver.admin.output import WIDE_OUTPUT, WideOutput
from dra_driver.cdi.roots import roots_of
from dra_driver.commands import common_settings
from dra_driver.commands.command_line import bounds, changed, option, shaped
from dra_driver.commands.common_settings import SECONDS

PLUGINS = changed(
    common_settings.KUBELET_PLUGINS_DIRECTORY_PATH,
    help="Folder with gpu.nvidia.com, where the driver keeps its records.",
)


class ShowUsage(common_settings.RootSettings):
    """Show who uses this node's GPUs: memory, utilisation and processes of containers.

    On a terminal, it is refreshed until Ctrl-C. Needs the host's PID namespace.
    """

    example = "dra-driver usage --gpu 0 --once"

    gpu: str = option(
        default="",
        check=shaped(".{0,64}", "at most 64 characters"),
        help="One GPU: its index, UUID or name, or the UUID of a MIG device.",
    )
    pid: int | None = option(
        check=bounds(least=1),
        default=None,
        help="The GPUs that a process uses, by its PID on the host.",
    )
    interval: float = option(check=SECONDS, default=2.0, help="Seconds between refreshes.")
    once: bool = option(default=False, help="Show it once, even on a terminal.")
    output: WideOutput = WIDE_OUTPUT
    kubelet_plugins_directory_path: Path = PLUGINS

    def cli_cmd(self) -> None:
        """Print the usage."""
        # Not imported above: `status` needs neither NVML nor a client.
        from dra_driver.admin.status import usage  # noqa: PLC0415

        usage.show(
            usage.Question(
                gpu=self.gpu,
                pid=self.pid,
                output=self.output,
                interval=None if self.once else self.interval,
            ),
            roots_of(self),
            self.kubelet_plugins_directory_path,
            sys.stdout,
        )
