"""`python hack/bench/prepare`: how long preparing and unpreparing claims takes, as JSON.

The driver runs as a process of its own with simulated GPUs and is called through its socket, as the
kubelet calls it. It asks a real API server (hack/cluster), or with `--apiserver fake` the contract
tests' one. Every run also measures what this machine needs for an empty call, an API GET and an
fsync, because only ratios within a run apply to other machines.
"""

import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from bench.prepare.course import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
