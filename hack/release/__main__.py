"""`python hack/release`: prepare a release, check it, print its notes.

See "Releases" in CONTRIBUTING.md.
"""

import sys
from pathlib import Path

# Python put this folder on its path; this package lies one folder up.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from release.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
