"""`python hack/dashboard`: draws the chart's dashboard for docs/pictures.

`python hack/dashboard fetch` prints the folder of prometheus and promtool, and gets them first.
"""

import sys
from pathlib import Path

# Python put this folder on its path; this package lies one folder up.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from dashboard.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
