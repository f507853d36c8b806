"""`dra-driver gather`: describes this node in one archive, for issues and the simulator.

In: settings, the node's files and NVML, and the API server if one is known. Out: an archive in a
file or on stdout, and on stderr what is missing. Nothing on the node is changed. Exit status: 0 if
an archive was written, even if parts are missing.
"""

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from dra_driver.admin.connect import CONTEXT, KUBECONFIG, NODE_NAME, connect
from dra_driver.admin.doctor.facts.cluster_facts import Cluster
from dra_driver.admin.doctor.facts.node_facts import library
from dra_driver.admin.doctor.facts.places import NodeSettings, Places
from dra_driver.admin.gather import machine, reading, software
from dra_driver.admin.gather.profile import profile_of
from dra_driver.admin.gather.reading import Missing, documents_of
from dra_driver.admin.gather.stand_ins import StandIns
from dra_driver.commands.command_line import argument, option
from dra_driver.commands.common_settings import SECONDS
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.nvml.library import NvmlLibrary
from dra_driver.devices.nvml.survey import Document, survey
from dra_driver.errors import SetupError
from dra_driver.host.files import write_whole
from dra_driver.ops.logs import configure_logs

_SHARE_OF_A_GPU = 6
"""The time limit divided by this is the most that a hanging GPU may take."""

_OF_TEXTS = (reading.CONFIG, reading.STATE, reading.LOG, reading.SLICES)
"""Documents with text that people wrote."""


class Gather(NodeSettings):
    """Describe this node in an archive, for an issue or for the simulator."""

    example = "dra-driver gather node.tar.gz"

    archive: str = argument(help="File to write, such as node.tar.gz; - means standard output.")
    identify: bool = option(
        default=False,
        help="Keep UUIDs, serial numbers, addresses and names, instead of replacing them.",
    )
    timeout: float = option(
        check=SECONDS, default=60.0, help="Time limit in seconds; parts are gathered in parallel."
    )
    kubeconfig: Path | None = KUBECONFIG
    context: str = CONTEXT
    node_name: str = option(
        default="",
        variable=True,
        check=NODE_NAME,
        help="Name of this machine's Node; unset: the host name.",
    )

    def cli_cmd(self) -> None:
        """Gather and write. Raises SetupError if the archive cannot be written."""
        # Standard output may be the archive.
        configure_logs(level="error", form="auto", stream=sys.stderr)
        missing = Missing()
        data = self.gathered(missing)
        if self.archive == "-":
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            _write(Path(self.archive), data)
        for gap in missing.listed():
            sys.stderr.write(f"without {gap['what']}: {gap['reason']}\n")
        place = "standard output" if self.archive == "-" else self.archive
        sys.stderr.write(f"{len(data)} bytes written to {place}\n")

    def gathered(self, missing: Missing) -> bytes:
        """Return the archive; missing parts are added to `missing`."""
        stand_ins = StandIns(identify=self.identify)
        for name in (self.node_name, platform.node(), platform.node().lower()):
            stand_ins.learn("node", name)
        names: dict[str, list[tuple[str, str]]] = {name: [] for name in _OF_TEXTS}
        documents = documents_of(self._parts(names, missing), missing, self.timeout)
        for kind, name in (pair for of_part in names.values() for pair in tuple(of_part)):
            stand_ins.learn(kind, name)
        for serial in _serials(documents.get(reading.NVML)):
            stand_ins.learn_serial(serial)
        clean = {
            name: stand_ins.of_texts(document)
            if name in _OF_TEXTS
            else stand_ins.of_facts(document)
            for name, document in _in_order(documents).items()
        }
        if reading.NVML in clean:
            pci, node = (clean.get(name, {}) for name in (reading.PCI, reading.NODE))
            profile = partial(profile_of, clean[reading.NVML], pci, node, missing)
            clean |= documents_of({reading.PROFILE: profile}, missing, self.timeout)
        about = {
            "dra-driver": metadata.version("dra-driver"),
            "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),  # noqa: TID251 (for people)
            "identified": self.identify,
            "missing": stand_ins.of_texts(missing.listed()),
        }
        return reading.pack(about, clean)

    def _parts(
        self, names: Mapping[str, list[tuple[str, str]]], missing: Missing
    ) -> Mapping[str, Callable[[], object]]:
        """Return the parts; each adds the names that it finds to its own list."""

        def learner(part: str) -> Callable[[str, str], object]:
            return lambda kind, name: names[part].append((kind, name))

        places = self.places()
        return {
            reading.NVML: partial(_nvml, places, self.timeout / _SHARE_OF_A_GPU),
            reading.PCI: partial(machine.pci_document, places, missing),
            reading.NODE: partial(machine.node_document, places, missing),
            reading.FILES: partial(machine.files_document, places),
            reading.CONFIG: partial(software.config_document, places, missing),
            reading.STATE: partial(
                software.state_document, places, learner(reading.STATE), missing
            ),
            reading.LOG: partial(software.log_document, places, learner(reading.LOG), missing),
            reading.SLICES: partial(self._slices, learner(reading.SLICES)),
        }

    def _slices(self, learn: software.Learn) -> list[dict[str, Any]]:
        client = connect(self.kubeconfig, self.context, environment=os.environ)
        node = self.node_name or platform.node().lower()
        cluster = Cluster(client, node=node, is_driver=False, timeout=self.timeout)
        with closing(cluster):
            return software.slices_document(cluster, learn)


def _nvml(places: Places, seconds: float) -> Document:
    """Ask NVML. Raises DeviceError if it cannot be opened."""
    calls = NvmlCalls(clock=time.monotonic, answer_seconds=seconds)
    nvml = NvmlLibrary(library(places), calls)
    nvml.open()
    try:
        return survey(calls)
    finally:
        if not calls.silent:
            nvml.close()


def _serials(nvml: Any) -> list[str]:
    gpus = nvml["gpus"] if nvml else ()
    answers = (gpu["calls"].get("nvmlDeviceGetSerial", {}) for gpu in gpus)
    return [answer["value"] for answer in answers if "value" in answer]


def _in_order(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return the documents, NVML's first, so that stand-ins are numbered like the GPUs."""
    first = [reading.NVML] if reading.NVML in documents else []
    return {name: documents[name] for name in [*first, *sorted(documents.keys() - set(first))]}


def _write(path: Path, data: bytes) -> None:
    """Write the archive, all of it or nothing; a pipe or device is written to, not replaced."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            write_whole(path.resolve(), data, mode=0o644, durable=False)
    except OSError as error:
        raise SetupError(f"the archive {path} cannot be written: {error.strerror}") from error
