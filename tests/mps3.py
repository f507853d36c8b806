"""A control daemon of MPS's protocol 3 for tests, as NVIDIA documents it; no GPU works under it.

It chooses namespaces by control groups that are plain folders, and tells the libcuda of the tests
(libcuda.c) how many SMs a client has: in `routes` in its pipe folder, the first line that fits.
`hard` in its log folder: partitions hold, and root of a container is refused.
"""

import json
import os
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

CHUNK = 8
PIPE = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
STATE = PIPE / "state.json"


def routes(server: dict[str, Any]) -> list[str]:
    """Lines of a file of processes, or of the value of a variable, and the SMs with it."""
    partitions = {
        one["name"]: (device["uuid"], number, one["chunks"] * CHUNK)
        for device in server.get("devices", ())
        for number, one in enumerate(device["sm_partitions"])
    }
    lines = [
        f"={uuid}/{number} {sms}"
        for uuid, number, sms in partitions.values()
        if not os.environ.get("TEST_MPS3_IS_HARD")
    ]
    for space in server.get("namespaces", {}).values():
        sms = 132 * int(space.get("active_thread_percentage", 100)) // 100
        for device in space.get("devices", ()):
            sms = partitions[device["sm_partition"]][2]
        group = Path(space["cgroup"])
        inner = [path for path in group.iterdir() if path.is_dir()] if group.is_dir() else []
        lines += [f"{path}/cgroup.procs {sms}" for path in (group, *inner)]
    return lines


def store(servers: dict[str, Any]) -> None:
    STATE.write_text(json.dumps(servers))
    (PIPE / "routes").write_text("".join(f"{line}\n" for line in routes(servers["probe"])))


def serve(config: Path) -> None:
    store(tomllib.loads(config.read_text())["servers"])
    while STATE.exists():
        time.sleep(0.02)


def ask(module: str, verb: str, *words: str) -> str:
    servers = json.loads(STATE.read_text())
    spaces = servers["probe"].setdefault("namespaces", {})
    facts = {
        key.removeprefix("--").replace("-", "_"): value
        for key, _, value in (word.partition("=") for word in words if word.startswith("--"))
    }
    match module, verb:
        case "server", "list":
            return " ".join(servers)
        case "sm-partition", "list":
            found = routes(servers["probe"])
            return "\n".join(f"wide,{number},16" for number in (0, 1) if found)
        case _ if "--help" in words:
            return "usage: namespace create NAME --server=NAME --cgroup=PATH"
        case _ if os.geteuid() != 0 or os.environ.get("TEST_MPS3_IS_HARD"):
            sys.exit(f"Insufficient privileges for UID {os.geteuid()}.")
        case "namespace", "create":
            spaces[words[0]] = facts
        case "namespace", "set":
            spaces[words[0]] |= facts
        case "namespace", "delete":
            del spaces[words[0]]
    store(servers)
    return ""


def quit_() -> None:
    """End, and leave nothing in the folders that stand for control groups."""
    for line in (PIPE / "routes").read_text().splitlines():
        if not line.startswith("="):
            Path(line.rpartition(" ")[0]).unlink(missing_ok=True)
    STATE.unlink()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["-q"]:
            quit_()
        case [*_, "-a", config]:
            serve(Path(config))
        case words:
            print(ask(*words))  # noqa: T201
