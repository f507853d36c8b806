"""`dra-driver convert FILE…`: manifests of older APIs as those that run with this driver.

In: files, folders, or `-` for stdin. Out: YAML for kubectl on stdout, and on stderr a line for each
thing that it does not carry over, `FILE:LINE:COLUMN: object: field: why: what to do`, and one that
names the kinds of objects that it did not look at. It needs no node, no GPU and no cluster.
"""

import sys

from dra_driver.admin.convert.manifests import convert
from dra_driver.admin.validate.command import as_text, passed_over, read_all
from dra_driver.commands.command_line import FILE, CommandSettings, argument
from dra_driver.host.printing import unescaped

_PARTS = (
    "note: the output has claims for parts of GPUs: run the driver with --consumable-shares (chart "
    "value consumableShares), or each gets a whole GPU; quotas on requests.nvidia.com/gpu do not "
    "count them (docs/works-with.md#resourcequota)"
)


class Convert(CommandSettings):
    """Convert claims, classes and pods of older APIs for this driver."""

    example = "dra-driver convert old.yaml >new.yaml"
    statuses = (
        "known objects are carried over in full, and `validate` finds no errors in the output",
        "something is not carried over or has errors; stderr has a line for each",
        "a file cannot be read",
    )

    files: list[str] = argument(
        metavar=FILE,
        help="Manifests (YAML or JSON), those of one cluster together. Folders are searched; - "
        "reads stdin.",
    )

    def cli_cmd(self) -> None:
        """Convert and print. Ends the process with status 1 or 2 unless all is carried over."""
        texts, unreadable = read_all(self.files)
        converted = convert(texts)
        # A file or kubectl gets each character as it was; a terminal must not act on any.
        out = sys.stdout if sys.stdout.isatty() else unescaped(sys.stdout)
        out.write(converted.text)
        lost = as_text(converted.reports)
        lines = (passed_over(converted.reports), _PARTS if converted.has_parts else "")
        sys.stderr.write(lost + "".join(f"{line}\n" for line in lines if line))
        if lost or unreadable:
            raise SystemExit(1 if lost else 2)
