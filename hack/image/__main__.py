"""`python hack/image`: build the driver's image, load it into a local cluster, look into it.

See docs/image.md.
"""

import sys
from pathlib import Path

# Python put this folder on its path; this package and the modules it shares lie one folder up.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from image.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
