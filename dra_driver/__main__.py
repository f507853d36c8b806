"""`python -m dra_driver` is the command `dra-driver`."""

import sys

from dra_driver.cli import main

if __name__ == "__main__":
    sys.exit(main())
