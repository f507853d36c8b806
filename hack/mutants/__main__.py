"""`python hack/mutants`: small faults in the rooms that must not break, and which no test sees.

See docs/testing.md. Exit status 2: it could not be run.
"""

import sys
from pathlib import Path

# Python put this folder on its path; this package lies one folder up.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from mutants.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
