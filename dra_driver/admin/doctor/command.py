"""`dra-driver doctor`: checks node and cluster, and reports what keeps pods from their GPUs.

In: settings, the node's files and NVML, the API server; missing parts are skipped, with a message.
Out: on stdout findings for people or JSON for programs. Nothing is changed.
"""

import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal

from dra_driver.admin.connect import CONTEXT, KUBECONFIG, NODE_NAME, connect
from dra_driver.admin.doctor.checks.finding import Finding, Place, Severity
from dra_driver.admin.doctor.every_check import CHECKS, SERVER
from dra_driver.admin.doctor.facts.cluster_facts import Cluster
from dra_driver.admin.doctor.facts.places import NodeSettings, Places
from dra_driver.admin.doctor.report import WIDTH, as_json, as_text, status_of
from dra_driver.admin.doctor.runner import Outcome, run_checks
from dra_driver.admin.doctor.sources import Sources
from dra_driver.admin.output import OUTPUT, Output, for_programs, is_for_programs
from dra_driver.commands import common_settings
from dra_driver.commands.command_line import changed, option
from dra_driver.commands.common_settings import SECONDS
from dra_driver.devices.gpu_words import gpu_words
from dra_driver.errors import SetupError


class Doctor(NodeSettings):
    """Find what keeps pods from their GPUs, on this node and in the cluster."""

    example = "dra-driver doctor --scope cluster"
    statuses = ("no errors", "errors", "nothing could be checked")

    output: Output = OUTPUT
    scope: Literal["auto", "node", "cluster"] = option(
        default="auto",
        help="What to check; auto: this machine if it is a node, and the cluster if there is a "
        "kubeconfig or ServiceAccount.",
    )
    verbose: bool = option(
        default=False,
        short="v",
        help="Also show checks that found nothing wrong, and those that were skipped.",
    )
    timeout: float = option(
        check=SECONDS, default=20.0, help="Time limit in seconds; checks run in parallel."
    )
    kubeconfig: Path | None = KUBECONFIG
    context: str = CONTEXT
    node_name: str = option(
        default="",
        variable=True,
        check=NODE_NAME,
        help="The node to check in the cluster; unset: all.",
    )
    exclude_gpus: str = common_settings.EXCLUDE_GPUS
    vfio: bool = changed(
        common_settings.VFIO,
        help="Also check whether virtual machines can use the GPUs; unset: only if the driver's "
        "pod or DaemonSet sets it.",
    )

    def cli_cmd(self) -> None:
        """Print the findings. Exits with status 1 for errors, 2 if nothing could be checked."""
        missing: dict[Place, str] = {}
        sources = self._sources(missing)
        if len(missing) == len(Place):
            reasons = "; ".join(missing.values())
            sys.stderr.write(f"error: there is nothing to check: {reasons}\n")
            raise SystemExit(2)
        try:
            outcomes = examined(sources, missing, self.timeout)
        finally:
            sources.close()
        if is_for_programs(self.output):
            document = as_json(outcomes, metadata.version("dra-driver"))
            sys.stdout.write(for_programs(document, self.output))
        else:
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
            sys.stdout.write(as_text(outcomes, verbose=self.verbose, width=min(columns, WIDTH)))
        if status := status_of(outcomes):
            raise SystemExit(status)

    def _sources(self, missing: dict[Place, str]) -> Sources:
        in_a_pod = "KUBERNETES_SERVICE_HOST" in os.environ
        return Sources(
            places=self._node(missing),
            cluster=self._cluster(missing, in_a_pod=in_a_pod),
            in_a_pod=in_a_pod,
            own_node=self.node_name or platform.node().lower(),
            vfio=self.vfio,
            excluded=gpu_words(self.exclude_gpus),
        )

    def _node(self, missing: dict[Place, str]) -> Places | None:
        plugins = self.kubelet_plugins_directory_path
        if self.scope == "cluster":
            missing[Place.NODE] = "--scope is cluster"
            return None
        if self.scope == "auto" and not (plugins.is_dir() or plugins.parent.is_dir()):
            missing[Place.NODE] = (
                f"this is not a node, or its folders are not visible: there is no {plugins.parent} "
                "(--kubelet-plugins-directory-path, --scope)"
            )
            return None
        try:
            return self.places()
        except SetupError as error:
            missing[Place.NODE] = str(error)
            return None

    def _cluster(self, missing: dict[Place, str], *, in_a_pod: bool) -> Cluster | None:
        if self.scope == "node":
            missing[Place.CLUSTER] = "--scope is node"
            return None
        try:
            client = connect(self.kubeconfig, self.context, environment=os.environ)
        except SetupError as error:
            if self.kubeconfig is not None or self.context:
                sys.stderr.write(f"error: {error}\n")
                raise SystemExit(2) from error
            missing[Place.CLUSTER] = str(error)
            return None
        own_account = in_a_pod and self.kubeconfig is None and "KUBECONFIG" not in os.environ
        return Cluster(
            client,
            node=self.node_name,
            is_driver=own_account,
            timeout=self.timeout,
        )


def examined(sources: Sources, missing: dict[Place, str], seconds: float) -> list[Outcome]:
    """Run all checks; those of the cluster only if its API server answers."""
    first = run_checks([SERVER], sources, missing=missing, seconds=seconds)
    if any(isinstance(finding, Finding) and is_silent(finding) for finding in first):
        missing = missing | {Place.CLUSTER: f"the API server does not answer (see {SERVER.id})"}
    rest = run_checks(
        [check for check in CHECKS if check is not SERVER],
        sources,
        missing=missing,
        seconds=seconds,
    )
    place = [check.id for check in CHECKS]
    return sorted([*first, *rest], key=lambda outcome: place.index(outcome.id))


def is_silent(finding: Finding) -> bool:
    """Return whether a finding means that the server does not answer, or rejects our identity."""
    return finding.severity is Severity.ERROR and not finding.is_answer
