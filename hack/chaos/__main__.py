"""`python hack/chaos`: make and delete pods while everything around them fails.

A real local cluster with simulated GPUs; after each round everything is repaired, and the
invariants are checked. Exit status 1: an invariant did not hold. See docs/chaos.md.
"""

import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from chaos.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
