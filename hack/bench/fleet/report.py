"""Measurements as flat figures, for ratios to the baseline and for a table.

In: what one variant cost with a number of nodes. Out: numbers by name, ratios, lines of text. Pure.
"""

from testbed.api import Object

from bench import comparison
from bench.fleet.variants import BASELINE
from dra_driver.admin.output import aligned

_KB = 1000


def figures(result: Object, nodes: int) -> dict[str, float]:
    """Return the numbers of a variant by name; a load that was not placed has none."""
    stored, roll_out = result["stored"], result["roll_out"]
    values = {
        "devices of a node": result["devices_of_a_node"],
        "slices of a node": result["slices_of_a_node"],
        "a node's slices as JSON, kB": stored["json_bytes"] / nodes / _KB,
        "a node's slices in etcd, kB": stored["protobuf_bytes"] / nodes / _KB,
        "writes of a second look": result["writes_of_a_second_look"],
        **{
            f"allocator, one node: {case}, µs": took
            for case, took in result["allocator_us"].items()
        },
        "all nodes publish, s": roll_out["seconds"],
        "all nodes publish: API server, CPU s": roll_out["api_server_cpu_seconds"],
        "API server when all is published, MiB": result["memory_mib"]["kube-apiserver"],
        "scheduler when it has seen them, MiB": result["memory_mib"]["kube-scheduler"],
    }
    for load, taken in result["loads"].items():
        if "pods_per_second" not in taken:
            continue
        values[f"{load}: pods per second"] = taken["pods_per_second"]
        for component in ("scheduler", "apiserver"):
            cpu = taken["cpu_ms_per_pod"][f"kube-{component}"]
            values[f"{load}: {component}, CPU ms per pod"] = cpu
    return values


def ratios(run: Object) -> dict[str, dict[str, float]]:
    """Return each variant's figures ÷ the baseline's, if the baseline has them."""
    return comparison.ratios(_columns(run), BASELINE)


def table(run: Object) -> list[str]:
    """Return the lines of a table: a row for each figure, a column for each variant."""
    title = f"{run['nodes']} nodes of {run['profile']}; in parentheses ÷ {BASELINE}"
    return [title, *aligned(comparison.rows(_columns(run), BASELINE)), *_unplaced(run)]


def _columns(run: Object) -> dict[str, dict[str, float]]:
    return {name: figures(taken, run["nodes"]) for name, taken in run["variants"].items()}


def _unplaced(run: Object) -> list[str]:
    return [
        f"{name}, {load}: only {taken['placed']} of {taken['pods']} pods were placed"
        for name, result in run["variants"].items()
        for load, taken in result["loads"].items()
        if taken["placed"] < taken["pods"]
    ]
