"""The command `dra-driver kubelet-plugin`: runs the driver in this process.

It runs until SIGTERM or SIGINT (status 0: sockets removed, running calls finished, claims left
prepared) or until one of its threads dies (status 1).
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import TextIO

import structlog

from dra_driver.errors import DriverError
from dra_driver.host.process import Shutdown, dump_stacks_at_sigusr2, spare_lasting_objects
from dra_driver.node.driver import Driver
from dra_driver.node.settings import Settings
from dra_driver.ops.logs import configure_logs

log = structlog.get_logger()


class KubeletPluginCommand(Settings):
    """Publish this node's NVIDIA GPUs and prepare them for the claims of its pods."""

    def cli_cmd(self) -> None:
        """Run until told to stop; ends with SystemExit, whose code is the exit status."""
        raise SystemExit(run(self, os.environ, sys.stderr))


def run(settings: Settings, environment: Mapping[str, str], stream: TextIO) -> int:
    """Run the driver until it is told to stop; return the exit status. Raises DriverError."""
    level, form = settings.least_severe, settings.line_format
    configure_logs(level=level, form=form, stream=stream, for_good=True)
    shutdown = Shutdown()
    shutdown.watch_signals()
    shutdown.watch_threads()
    driver = Driver(settings, environment)
    dump_stacks_at_sigusr2(driver.paths.data_directory / "thread-stacks.dump")
    log.info("driver starting", version=version("dra-driver"), node=settings.node_name)
    for name, why in settings.without_effect().items():
        log.warning("setting has no effect", setting=name, reason=why)
    try:
        driver.start()
    except DriverError:
        driver.stop()
        raise
    spare_lasting_objects()
    log.info("driver started")
    reason = shutdown.wait()
    log.info("driver stopping", reason=reason.text)
    if reason.exit_status == 0:
        driver.let_claims_end(shutdown.comes_within)
    left = driver.stop()
    if left:
        log.warning("claims left unfinished", claims=left)
    log.info("driver stopped", status=reason.exit_status)
    if left:
        # Their threads would keep the process alive. What they do survives a kill.
        with suppress(OSError):
            stream.flush()
        os._exit(reason.exit_status)
    return reason.exit_status
