"""`python hack/mutants`: small faults in the folders that must not break, and which survive.

See docs/testing.md. Exit status 2: it could not be run.
"""

import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from mutants.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
