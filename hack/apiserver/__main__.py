"""Run the contract tests' API server by itself: `python hack/apiserver --objects FILE`.

Stores the objects of YAML files, prints its URL as the first line, and serves until it is told to
stop.
"""

import argparse
import signal
import sys
import threading
from pathlib import Path

import yaml

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from apiserver.server import ApiServer


def main() -> int:
    parser = argparse.ArgumentParser(prog="apiserver", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 picks a free one")
    parser.add_argument("--objects", type=Path, action="append", default=[], help="YAML to store")
    parser.add_argument("--kubeconfig", type=Path, help="where to write a kubeconfig")
    parser.add_argument("--kubernetes", metavar="1.37", help="version that it says it has")
    asked = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = ApiServer(port=asked.port)
    if asked.kubernetes:
        server.kubernetes = asked.kubernetes
    for path in asked.objects:
        server.put(*filter(None, yaml.safe_load_all(path.read_text(encoding="utf-8"))))
    with server:
        if asked.kubeconfig:
            server.write_kubeconfig(asked.kubeconfig)
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        while not stop.wait(60):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
