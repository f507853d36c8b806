"""The command line: brings up a node, has it measured, prints tables and writes JSON."""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from testbed.api import Object
from testbed.cluster import Cluster
from testbed.node import GpuNode

from bench.command_line import add_cluster_options, machine, names_of, numbers_of, run, say_as
from bench.pods.plugin import hook
from bench.pods.report import summarised, table
from bench.pods.rounds import Plan, check, lives_of_pods, queues
from bench.pods.variants import EVERY_VARIANT, MIG, PLUGIN, VARIANTS

PROFILE = "h100x8"
_MOST = 8
_say = say_as("pods")
_ENV = {"LOG_LEVEL": "debug"}
"""The driver's additional setting: to log each call of the kubelet with its duration."""

_FOR_MIG = {"MIG": "on-demand"}
"""Lets it divide any GPU into MIG devices, so the scheduler has more devices to check."""


def main(words: Sequence[str]) -> int:
    """Measure, print tables, write JSON; return the exit status."""
    options = _options(words)
    return run(partial(_bench, options), root="a kubelet needs root")


def _bench(options: argparse.Namespace) -> None:
    plan = Plan(
        variants=tuple(options.variants),
        at_once=tuple(options.at_once),
        rounds=options.rounds,
        queued=options.queued,
    )
    env = _ENV | (_FOR_MIG if MIG in plan.variants else {})
    env |= {"NVIDIA_CDI_HOOK_PATH": hook()} if PLUGIN in plan.variants else {}
    with _node(options.kubernetes, env) as node:
        result = measure(node, plan)
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")
    for case in result["cases"]:
        print("\n".join([*table(case), ""]))
    for variant, seconds in result["queued_s"].items():
        print(f"{variant}: {plan.queued} pods that end at once, one GPU each: {seconds:.1f} s")


def measure(node: GpuNode, plan: Plan) -> Object:
    """Measure as planned on a node that is up, and whose driver logs at debug level."""
    check(node, plan)
    lives = lives_of_pods(node, plan, _say)
    return {
        "machine": machine() | {"load": os.getloadavg()[0]},
        "kubernetes": node.cluster.env["CLUSTER_KUBERNETES_VERSION"],
        "profile": node.machine.profile,
        "rounds": plan.rounds,
        "cases": summarised(lives),
        "queued_s": queues(node, plan),
        "pods": [
            {"variant": life.variant, "at_once": life.at_once, "durations_ms": life.took}
            for life in lives
        ],
    }


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/bench/pods", description=__doc__)
    parser.add_argument(
        "--variants",
        type=names_of(EVERY_VARIANT),
        default=list(VARIANTS),
        help=f"what pods ask for, of {', '.join(EVERY_VARIANT)} (default: all but the last)",
    )
    parser.add_argument(
        "--at-once",
        type=numbers_of("pod", most=_MOST),
        default=[1, _MOST],
        help=f"pods made at the same moment, at most {_MOST} (default: 1,{_MOST})",
    )
    parser.add_argument("--rounds", type=int, default=10, help="turns that count (default: 10)")
    parser.add_argument(
        "--queued", type=int, default=0, help="pods that end at once, made together (default: none)"
    )
    add_cluster_options(parser)
    return parser.parse_args(words)


@contextmanager
def _node(kubernetes: str, env: Mapping[str, str]) -> Iterator[GpuNode]:
    """Bring up a node with a driver and an MPS supervisor; take all down at the end."""
    with tempfile.TemporaryDirectory(prefix="dra-bench-", dir="/var/tmp") as folder:
        node = GpuNode(
            Cluster("pods", kubernetes),
            Path(folder) / "node",
            profile=PROFILE,
            token_life=6 * 3600,
            driver_env=env,
            mps=True,
        )
        node.clear()
        try:
            node.up(lambda _: None)
            yield node
        finally:
            node.down()
