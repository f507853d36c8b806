"""A cluster that stays up for several nodes, one after the other: its start outlasts most tests."""

import shutil
from collections.abc import Callable

from testbed.cluster import Cluster
from testbed.driver import DRIVER_NAME


class LastingCluster(Cluster):
    """A cluster that goes by `close`, and not with a node that was on it."""

    _is_up = False

    def up(self, tell: Callable[[str], None]) -> None:
        """Bring the cluster up, unless it is for a node before."""
        if not self._is_up:
            super().up(tell)
            self._is_up = True

    def down(self) -> None:
        """Forget the last node, whose driver is stopped; before `up`, remove what is there.

        Else the next node's driver would find the other's GPUs published, and noted on disk.
        """
        if not self._is_up:
            super().down()
            return
        self.kubectl("delete", "resourceslices", "--all")
        if (noted := self.plugins / DRIVER_NAME).exists():
            shutil.rmtree(noted)

    def close(self) -> None:
        """Remove the cluster."""
        if self._is_up:
            self._is_up = False
            super().down()
