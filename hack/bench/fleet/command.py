"""The command line, and the course of a run: nodes, variants, loads."""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from testbed.api import Object
from testbed.cluster import Cluster, fetched

from bench.command_line import add_cluster_options, machine, names_of, numbers_of, run, say_as
from bench.fleet import allocator
from bench.fleet.loads import LOADS, smallest_profile, workload
from bench.fleet.placing import place, start_scheduler
from bench.fleet.publishing import looked_again, roll_out, stored, withdraw
from bench.fleet.report import ratios, table
from bench.fleet.stage import Stage, control_plane, made_up_nodes
from bench.fleet.variants import VARIANTS, devices, serves
from dra_driver.devices.model import Inventory
from dra_driver.simulator.nodes import inventory_of, on_node

_PODS_PER_NODE = 6
_MOST_PODS = 200
_say = say_as("fleet")


def main(words: Sequence[str]) -> int:
    """Measure, print tables, write JSON; return the exit status."""
    options = _options(words)
    return run(partial(_bench, options), root="a real cluster needs root")


def _bench(options: argparse.Namespace) -> None:
    inventory, limited = inventory_of(options.profile), options.default_limits
    suffix = "-1.38" if options.kubernetes.startswith("1.38") else ""
    program = fetched(f"judge{suffix}") / f"allocation-judge{suffix}"
    one_node = {variant: _of_a_node(variant, inventory, program) for variant in options.variants}
    with control_plane(options.name, options.kubernetes, limited=limited) as cluster:
        runs = [_run(cluster, inventory, nodes, options, one_node) for nodes in options.nodes]
        version = cluster.env["CLUSTER_KUBERNETES_VERSION"]
    result = {
        "machine": machine(),
        "kubernetes": version,
        "default_limits": limited,
        "runs": runs,
    }
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/bench/fleet", description=__doc__)
    parser.add_argument(
        "--nodes",
        type=numbers_of("node"),
        default=[10],
        help="how many, such as 10,100 (default: 10)",
    )
    parser.add_argument(
        "--pods",
        type=int,
        default=0,
        help=f"pods of a load (default: {_PODS_PER_NODE} per node, at most {_MOST_PODS})",
    )
    parser.add_argument(
        "--variants",
        type=names_of(VARIANTS),
        default=list(VARIANTS),
        help=f"of {', '.join(VARIANTS)} (default: all, in this order)",
    )
    parser.add_argument(
        "--loads",
        type=names_of(LOADS),
        default=list(LOADS),
        help=f"of {', '.join(LOADS)} (default: all)",
    )
    parser.add_argument("--profile", default="h100x8", help="the GPUs of a node (default: h100x8)")
    parser.add_argument(
        "--default-limits",
        action="store_true",
        help="leave scheduler and controller manager the limits on requests that they have in most"
        " clusters (default: none, so that they are not what is measured)",
    )
    parser.add_argument("--name", default="fleet", help="name of the cluster (default: fleet)")
    add_cluster_options(parser)
    return parser.parse_args(words)


def pods_for(nodes: int, asked: int) -> int:
    """Return how many pods a load has."""
    return asked or min(_PODS_PER_NODE * nodes, _MOST_PODS)


def _of_a_node(variant: str, inventory: Inventory, program: Path) -> Object:
    """Return the figures of one node's slices, which do not depend on the number of nodes."""
    _say(f"{variant}: the slices of one node")
    pool = VARIANTS[variant](on_node(inventory, "node"), "node")
    return {
        "devices_of_a_node": len(devices(pool)),
        "slices_of_a_node": len(pool.contents),
        "allocator_us": allocator.cost(program, pool, smallest_profile(inventory)),
    }


def _run(
    cluster: Cluster,
    inventory: Inventory,
    nodes: int,
    options: argparse.Namespace,
    one_node: Mapping[str, Object],
) -> Object:
    _say(f"making {nodes} nodes")
    with made_up_nodes(cluster, nodes) as stage:
        variants = {
            variant: one_node[variant] | _measure(stage, variant, inventory, options)
            for variant in options.variants
        }
    measured: Object = {"nodes": nodes, "profile": options.profile, "variants": variants}
    measured["ratios"] = ratios(measured)
    print("\n".join(table(measured)), flush=True)
    return measured


def _measure(
    stage: Stage, variant: str, inventory: Inventory, options: argparse.Namespace
) -> Object:
    nodes = len(stage.nodes)
    pool = VARIANTS[variant](inventory, "node")
    profile = smallest_profile(inventory)
    stage.stop_scheduler()
    stage.restart_api_server()
    _say(f"{variant}: {nodes} nodes publish")
    taken: Object = {
        "roll_out": roll_out(stage, VARIANTS[variant], inventory),
        "stored": stored(stage),
        "writes_of_a_second_look": looked_again(stage, VARIANTS[variant], inventory),
        "loads": {},
    }
    start_scheduler(stage)
    taken["memory_mib"] = stage.memory_mib()
    for load in options.loads:
        if serves(pool, load, profile):
            work = workload(load, pods_for(nodes, options.pods), profile)
            _say(f"{variant}: {len(work.pods)} pods, {load}")
            taken["loads"][load] = place(stage, work)
    withdraw(stage, pool)
    return taken
