"""`python3 hack/cluster COMMAND`: a real one-node Kubernetes on this machine.

Python puts this folder on its path when it is run as a program, so the package
beside this file needs no installation and no virtual environment.
"""

import sys

from local_cluster.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
