"""The command line of a campaign."""

import argparse
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster.binaries import RUNTIMES
from testbed.cluster import Cluster
from testbed.commands import TestbedError
from testbed.disk import SmallDisk
from testbed.driver import DriverProcess
from testbed.node import GpuNode, put_share_config
from testbed.pods import make_namespace

from chaos.campaign import Campaign, Report, Violation
from chaos.plan import Round, rounds
from chaos.workloads import DIVISIONS, NAMESPACE, config

_DISK_BYTES = 24 * 1024 * 1024
_DISK_INODES = 4096
_SHORT = 3.0
"""Seconds that a GPU has to answer NVML: less than most hangs last, so that they are noticed."""


def main(words: Sequence[str]) -> int:
    """Run a campaign; return 1 if an invariant did not hold, 2 if it could not be run."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with its clean-up
    options = _options(words)
    if options.plan:
        _print_plan(options)
        return 0
    if os.geteuid() != 0:
        sys.stderr.write("error: a real cluster needs root; --plan does not\n")
        return 2
    report = Report(seed=options.seed)
    try:
        with _campaign(options, report) as campaign:
            _run(campaign, options)
    except Violation as violation:
        print(f"VIOLATION: {violation}")
    except TestbedError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    finally:
        if options.output:
            options.output.write_text(report.as_json() + "\n")
    print(_summary(report))
    return 1 if report.violations else 0


def _print_plan(options: argparse.Namespace) -> None:
    count = options.rounds or 10
    for plan in itertools.islice(rounds(options.seed), count):
        print(f"round {plan.number}", *(f"  {event}" for event in plan.events), sep="\n")


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="determines what happens")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--rounds", type=int, default=0, help="how many rounds (default: 10)")
    length.add_argument("--minutes", type=float, default=0, help="ends after a round")
    parser.add_argument("--name", default="chaos", help="name of the cluster")
    parser.add_argument("--kubernetes", default="", help="its version, such as 1.36")
    parser.add_argument("--containerd", default="", help="containerd version, such as 1.7")
    parser.add_argument(
        "--runtime",
        choices=RUNTIMES,
        default=RUNTIMES[0],
        help=f"the container runtime ({RUNTIMES[0]})",
    )
    parser.add_argument("--output", type=Path, help="file for the report, as JSON")
    parser.add_argument(
        "--logs", type=Path, help="folder to keep the logs of driver and supervisor in"
    )
    parser.add_argument("--plan", action="store_true", help="only print the plan")
    return parser.parse_args(words)


def _run(campaign: Campaign, options: argparse.Namespace) -> None:
    """Run the rounds, and a last one that removes everything."""
    end = time.monotonic() + options.minutes * 60
    plan = Round(0, (), ())
    for plan in rounds(options.seed):
        campaign.run(plan)
        enough = plan.number >= (options.rounds or 10)
        if time.monotonic() >= end if options.minutes else enough:
            break
    campaign.finish(plan)


@contextmanager
def _campaign(options: argparse.Namespace, report: Report) -> Iterator[Campaign]:
    """Bring up a node whose driver has a disk of its own; take everything down at the end."""
    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="dra-chaos-", dir="/var/tmp"))
        configs = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="dra-chaos-shares-")))
        put_share_config(configs, config(DIVISIONS[0]))
        node = GpuNode(
            Cluster(
                options.name,
                options.kubernetes,
                containerd=options.containerd,
                runtime=options.runtime,
            ),
            folder,
            driver_env={
                "MIG": "on-demand",
                "RESCAN_INTERVAL": "1",
                "HEALTH_SETTLE": "1",
                "NVML_TIMEOUT": str(_SHORT),
                "SHARE_CONFIG": str(configs),
                "WHOLE_GPUS_BESIDE_SHARES": "always",
                "OVER_LIMIT": "end",
            },
            mps=True,
        )
        node.clear()
        undo.callback(node.down)
        if options.logs:
            undo.callback(_keep_logs, folder, options.logs)
        node.up_to_driver(print)
        _show_containers(node)
        if not node.can_run_mps:
            raise TestbedError("NVIDIA's MPS programs are not available")
        disk = SmallDisk(node.place.data, size=_DISK_BYTES, inodes=_DISK_INODES)
        undo.callback(disk.unmount)
        node.start_supervisor()
        node.start_driver()
        undo.callback(_end, node.supervisor)
        undo.callback(_end, node.driver)
        node.credentials.keep_fresh()
        make_namespace(node.cluster.api, NAMESPACE)
        yield Campaign(node, disk, configs, report, print)


def _show_containers(node: GpuNode) -> None:
    """Make the kubelet's list of containers visible below the root of the driver's node."""
    log = node.place.driver_root / "var/log"
    log.mkdir(parents=True, exist_ok=True)
    kubelets = node.cluster.plugins.parents[1] / "host/var/log/containers"
    (log / "containers").symlink_to(kubelets)


def _keep_logs(folder: Path, kept: Path) -> None:
    """Copy the logs of driver and supervisor before they are removed with the node."""
    kept.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, kept)


def _end(process: DriverProcess) -> None:
    """End a process, also one that is frozen."""
    if process.running():
        process.send(signal.SIGCONT)
    process.stop()


def _summary(report: Report) -> str:
    """The report, for a person."""
    minutes = f"{report.seconds / 60:.0f} minutes"
    lines = [f"seed {report.seed}: {report.rounds} rounds, {report.pods} pods, {minutes}"]
    lines += [f"  {count:4}  {name}" for name, count in sorted(report.events.items())]
    if report.settled:
        lines.append(
            f"everything held after {sorted(report.settled)[len(report.settled) // 2]:.0f} s"
            f" (median), {max(report.settled):.0f} s (longest)"
        )
    for name in report.needs[0] if report.needs else ():
        needs = [need[name] for need in report.needs]
        memory = f"{needs[0].resident >> 20} to {max(each.resident for each in needs) >> 20} MiB"
        files = f"{needs[0].descriptors} to {max(each.descriptors for each in needs)}"
        lines.append(f"{name}: {memory}, {files} open files")
    lines += [
        f"pods were told {count} times: {text}" for text, count in report.warnings.most_common(12)
    ]
    return "\n".join([*lines, *(f"violation in {violation}" for violation in report.violations)])
