"""`dra-driver take-over`: takes a node over from NVIDIA's DRA driver before this driver serves it.

It is the init container of the driver's pod, and a command for people. Most nodes have no
checkpoint of that driver: then it imports nothing else and ends. While that driver runs, it waits,
then fails, so that this driver neither starts nor publishes beside it. Any other problem is
reported, but does not keep the node from serving new claims.
"""

import os
import sys

from dra_driver.admin.takeover.checkpoint_file import FILE
from dra_driver.admin.takeover.settings import TakeOverSettings
from dra_driver.commands.for_people import say
from dra_driver.devices.names import DRIVER_NAME


class TakeOverCommand(TakeOverSettings):
    """Take over the claims that NVIDIA's DRA driver has prepared on this node."""

    example = "dra-driver take-over --plan"
    statuses = (
        "done, or nothing to do; stderr says which claims were not taken over",
        "NVIDIA's DRA driver runs on this node, or the node cannot be read",
    )

    def cli_cmd(self) -> None:
        """Take over, or print what would be taken over."""
        directory = self.kubelet_plugins_directory_path / DRIVER_NAME
        if not os.path.lexists(directory / FILE):
            say(f"nothing to take over: there is no {directory / FILE}")
            return
        from dra_driver.admin.takeover import node  # noqa: PLC0415 (seldom needed)

        node.take_over(self, directory, sys.stderr)
