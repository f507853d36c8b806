"""`python hack/bench/fleet`: what a node's ResourceSlices cost a cluster of many nodes.

A real etcd, API server, scheduler and controller manager (hack/cluster), simulated Nodes, and the
slices that such nodes would publish. Pods are bound, but not run. The same is measured for several
ways to publish the same GPUs, because only ratios within a run apply to other machines.
"""

import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from bench.fleet.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
