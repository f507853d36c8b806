"""`python hack/bench/pods`: how long a pod takes to start and to end, with a claim and without.

A real cluster with a kubelet and containerd (hack/cluster), the driver on simulated GPUs, and pods
that differ only in their claims. They take turns, so that whatever slows the machine down slows all
of them. Only ratios within a run apply to other machines.
"""

import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from bench.pods.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
