"""The command line of `hack/image`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from image import archive, sbom
from image.builder import Builder, cache_folder
from image.errors import ImageError
from image.inspection import complaints
from image.recipe import ARCHITECTURES, NAME, TARGETS, Recipe, own_architecture, version


def main(words: Sequence[str]) -> int:
    """Run one command; return 1 if it failed or an image breaks a rule."""
    options = _options(words)
    try:
        return int(options.run(options))
    except ImageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hack/image", description="Builds the driver's image where no registry can be reached."
    )
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    build = verbs.add_parser("build", help="build it, or find the one built before; print where")
    build.set_defaults(run=_build)
    build.add_argument("--target", choices=TARGETS, default="driver")
    build.add_argument("--arch", choices=ARCHITECTURES, default=own_architecture())
    build.add_argument("--fresh", action="store_true", help="with Debian's packages of today")

    check = verbs.add_parser("check", help="look for what should not be in an archive's images")
    check.set_defaults(run=_check)
    check.add_argument("archive", type=Path)

    bill = verbs.add_parser("sbom", help="write an archive's bills of materials, one for each arch")
    bill.set_defaults(run=_sbom)
    bill.add_argument("archive", type=Path)
    bill.add_argument("--output", type=Path, required=True, help="folder for them")
    return parser.parse_args(words)


def _build(options: argparse.Namespace) -> int:
    builder = Builder(cache=cache_folder(os.environ), say=_say)
    recipe = Recipe(target=options.target, arch=options.arch)
    print(builder.archive(recipe, fresh=options.fresh))
    return 0


def _check(options: argparse.Namespace) -> int:
    wrong = 0
    for image in archive.read(options.archive):
        problems = complaints(image)
        wrong += len(problems)
        megabytes = (image.download / 1e6, image.unpacked / 1e6)
        print(f"{image.arch}: {megabytes[0]:.1f} MB to download, {megabytes[1]:.1f} MB unpacked")
        for problem in problems:
            print(f"{image.arch}: {problem}", file=sys.stderr)
    return int(wrong > 0)


def _sbom(options: argparse.Namespace) -> int:
    options.output.mkdir(parents=True, exist_ok=True)
    for image in archive.read(options.archive):
        path = options.output / f"{NAME}-{version()}-{image.arch}.cdx.json"
        path.write_text(sbom.document(image, NAME, version()))
        print(path)
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"image: {text}\n")
