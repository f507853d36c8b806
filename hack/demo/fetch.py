"""Gets the cluster's binaries in the background, while something else is on the screen."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from testbed.cluster import COMMAND, version_flags
from testbed.commands import TestbedError

from demo.screen import Screen


class BinariesMissingError(TestbedError):
    """There is no way to get the binaries on this machine."""


class Fetch:
    """`hack/cluster fetch` as a process of its own; its output is shown when it is waited for."""

    def __init__(self, kubernetes: str) -> None:
        """Take the version of Kubernetes; the empty text is hack/cluster's own."""
        self._versions = version_flags(kubernetes, "")

    def __enter__(self) -> Self:
        self._log = tempfile.NamedTemporaryFile(prefix="dra-demo-fetch-")
        self._process = subprocess.Popen(
            [sys.executable, COMMAND, "fetch", *self._versions],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which then ends this in its own way
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        self._log.close()

    def running(self) -> bool:
        """Whether it is still at work."""
        return self._process.poll() is None

    def follow(self, screen: Screen) -> None:
        """Show what it prints until it has ended.

        Raises BinariesMissingError if they could not be had; why is on the screen.
        """
        with Path(self._log.name).open(encoding="utf-8", errors="replace") as log:
            while True:
                ended = not self.running()  # asked first, so that no line is missed
                for line in log:
                    screen.text(line)
                if ended:
                    break
                time.sleep(0.2)
        if self._process.returncode:
            raise BinariesMissingError("its binaries could not be had, for the reason above")
