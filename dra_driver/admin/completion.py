"""`dra-driver completion SHELL`: completion of command lines in bash, zsh and fish, and in kubectl.

In: a shell's name. Out: on stdout a script for it, by click. kubectl runs a separate program,
kubectl_complete-gpu on the PATH; it prints the possible next words, one a line, and a number that
tells kubectl whether to complete file names, too.
"""

import sys
from typing import Literal

import click
from click.shell_completion import ShellComplete, get_completion_class

from dra_driver.admin.program import KUBECTL, RootCommand, kubectl_words
from dra_driver.cli import COMPLETE, PROGRAM
from dra_driver.commands.command_line import CommandSettings, argument

_ALSO_FILES = ":0"
_NOTHING_ELSE = ":4"


class Completion(CommandSettings):
    """Print a script that completes command lines.

    In bash and zsh, source it as in the example. In fish, run
    `dra-driver completion fish | source`. kubectl's own script completes `kubectl gpu`.
    """

    example = "source <(dra-driver completion bash)"

    shell: Literal["bash", "zsh", "fish"] = argument(help="The shell.")

    def cli_cmd(self) -> None:
        """Print it."""
        made = get_completion_class(self.shell)
        assert made is not None  # noqa: S101 (the three have one)
        sys.stdout.write(made(click.Group(PROGRAM), {}, PROGRAM, COMPLETE).source() + "\n")


def kubectl_complete() -> int:
    """Print the possible next words of a `kubectl gpu` command, as kubectl expects of plugins."""
    *words, incomplete = sys.argv[1:] or [""]
    asked = ShellComplete(RootCommand(KUBECTL), {}, KUBECTL, "")
    offers = asked.get_completions(kubectl_words(words), incomplete)
    files = any(offer.type in ("file", "dir") for offer in offers)
    lines = [f"{offer.value}\t{offer.help or ''}" for offer in offers if offer.type == "plain"]
    sys.stdout.write("\n".join([*lines, _ALSO_FILES if files else _NOTHING_ELSE]) + "\n")
    return 0
