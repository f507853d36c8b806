"""`python hack/demo [--demo NAME|all] [--profile NAME] …`: show the driver at work, without a GPU.

First the node half (simulated GPUs, the driver, two claims), which needs nothing but this folder.
Then a real one-node cluster, on which the demos of manifests/demos/ run. Ends with `demo: ok` and
status 0, or with the reason why not. `--help` has the other options.
"""

import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from demo.show import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
