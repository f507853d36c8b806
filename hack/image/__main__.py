"""`python hack/image`: build the driver's image, and inspect images.

See docs/image.md.
"""

import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from image.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
