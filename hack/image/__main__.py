"""`python hack/image`: build the driver's image, or find the one built before; print where it is.

See docs/image.md.
"""

import argparse
import os
import sys
from pathlib import Path

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from image.archive import ImageError
from image.builder import Builder, cache_folder
from image.recipe import ARCHITECTURES, TARGETS, Recipe, own_architecture


def main() -> int:
    """Build; return 1 if that failed."""
    parser = argparse.ArgumentParser(
        prog="hack/image", description="Builds the driver's image where no registry can be reached."
    )
    parser.add_argument("--target", choices=TARGETS, default="driver")
    parser.add_argument("--arch", choices=ARCHITECTURES, default=own_architecture())
    parser.add_argument("--fresh", action="store_true", help="with Debian's packages of today")
    options = parser.parse_args()
    builder = Builder(
        cache=cache_folder(os.environ), say=lambda text: print(f"image: {text}", file=sys.stderr)
    )
    try:
        recipe = Recipe(target=options.target, arch=options.arch)
        print(builder.archive(recipe, fresh=options.fresh))
    except ImageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
