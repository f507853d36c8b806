"""`python3 hack/cluster COMMAND`: a real one-node Kubernetes on this machine.

It needs no installation and no virtual environment.
"""

import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from cluster.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
