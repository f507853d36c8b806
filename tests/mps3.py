"""A control daemon of MPS's protocol 3 for tests, as NVIDIA documents it; no GPU works under it.

It chooses namespaces by control groups that are plain folders, and tells the libcuda of the tests
(libcuda.c) how many SMs a client has: in `routes` in its pipe folder, the first line that fits.
It starts often, so what it imports is little.
"""

import os
import sys
import time

CHUNK = 8
PIPE = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
STATE, ROUTES = f"{PIPE}/state.json", f"{PIPE}/routes"


def routes(server: "dict[str, object]") -> "list[str]":
    """Lines of a file of processes, or of the value of a variable, and the SMs with it."""
    partitions = {
        one["name"]: (f"={device['uuid']}/{number}", one["chunks"] * CHUNK)
        for device in server.get("devices", ())
        for number, one in enumerate(device["sm_partitions"])
    }
    lines = [f"{name} {sms}" for name, sms in partitions.values()]
    for space in server.get("namespaces", {}).values():
        sms = 132 * int(space.get("active_thread_percentage", 100)) // 100
        for device in space.get("devices", ()):
            sms = partitions[device["sm_partition"]][1]
        group = space["cgroup"]
        lines += [f"{folder}/cgroup.procs {sms}" for folder, _, _ in os.walk(group)]
    return lines


def store(server: "dict[str, object]") -> None:
    import json  # noqa: PLC0415

    for path, text in ((ROUTES, "\n".join(routes(server))), (STATE, json.dumps(server))):
        with open(path, "w") as file:  # noqa: PTH123
            file.write(text)


def serve(config: str) -> None:
    import tomllib  # noqa: PLC0415

    with open(config, "rb") as file:  # noqa: PTH123
        store(tomllib.load(file)["servers"]["probe"])
    while os.path.exists(STATE):  # noqa: PTH110
        time.sleep(0.02)


def ask(module: str, verb: str, *words: str) -> str:
    if (module, verb) == ("server", "list") and os.path.exists(STATE):  # noqa: PTH110
        return "probe"
    if module == "sm-partition":
        return "narrow,0,8\nwide,1,16"
    if "--help" in words:
        return "usage: namespace create NAME --server=NAME --cgroup=PATH"
    if os.geteuid() != 0 or module == "server":
        sys.exit(f"Insufficient privileges for UID {os.geteuid()}.")
    import json  # noqa: PLC0415

    with open(STATE) as file:  # noqa: PTH123
        server = json.load(file)
    spaces = server.setdefault("namespaces", {})
    if verb == "delete":
        del spaces[words[0]]
    else:
        facts = (word[2:].partition("=")[::2] for word in words[1:])
        spaces.setdefault(words[0], {}).update(
            {key.replace("-", "_"): value for key, value in facts}
        )
    store(server)
    return ""


def end() -> None:
    """End, and leave nothing in the folders that stand for control groups."""
    with open(ROUTES) as file:  # noqa: PTH123
        for line in file:
            path = line.rpartition(" ")[0]
            if os.path.exists(path):  # noqa: PTH110
                os.unlink(path)  # noqa: PTH108
    os.unlink(STATE)  # noqa: PTH108


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["-q"]:
            end()
        case [*_, "-a", config]:
            serve(config)
        case words:
            print(ask(*words))  # noqa: T201
