"""`python hack/hardware`: tries the driver on this machine's card, and leaves it as it was.

Prints first what it would change, changes only what `--allow` names, and writes what it found into
a report. A run that was killed is undone by the next one, or by `--restore`.
"""

import os
import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[1])

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # no messages about a driver that has ended

from hardware.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
