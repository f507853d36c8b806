"""Commands of the project's pages, run as a reader types them.

In: a page, and what stands for the words in capitals that a reader replaces. Out: what the commands
print. `helm` and `kubectl` are those of the local cluster; `helm install` gets the values that only
a node of hack/cluster needs, and nothing else is changed.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from testbed.commands import REPOSITORY, run
from testbed.helm import Helm
from testbed.installed_node import NAMESPACE, InstalledNode

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)

_HELM = """#!/bin/sh
if [ "$1" = install ]; then set -- "$@" --values {values}; fi
exec {helm} "$@"
"""
_KUBECTL = """#!/bin/sh
exec {kubectl} "$@"
"""


def blocks(page: str, heading: str, kind: str = "sh") -> list[str]:
    """The blocks of a kind under a page's heading; with `sh` also what a console has typed."""
    text = (REPOSITORY / page).read_text()
    _, *parts = _HEADING.split(text)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    return [
        "\n".join(_COMMAND.findall(body)) if one == "console" else body.rstrip("\n")
        for one, body in _BLOCK.findall(sections[heading])
        if one == kind or (kind, one) == ("sh", "console")
    ]


class Reader:
    """Somebody with a terminal, in a clone, as the admin of a node's cluster."""

    def __init__(self, node: InstalledNode, folder: Path, words: Mapping[str, str]) -> None:
        """Take where programs and values may be written, and what the reader puts for a word."""
        self._words = words
        env, programs = node.cluster.env, folder / "bin"
        values = folder / "values.yaml"
        values.write_text(yaml.safe_dump(node.values()))
        helm = Helm(node.cluster, NAMESPACE).program
        programs.mkdir()
        _write(programs / "helm", _HELM.format(values=values, helm=helm))
        _write(programs / "kubectl", _KUBECTL.format(kubectl=env["KUBECTL"]))
        self._env = {
            "HOME": str(folder),
            "KUBECONFIG": env["KUBECONFIG"],
            "PATH": f"{programs}:{os.environ['PATH']}",
        }

    def types(self, commands: str) -> str:
        """Run commands as they stand; return what they print. Raises TestbedError if one fails."""
        for word, said in self._words.items():
            commands = re.sub(rf"\b{word}\b", said, commands)
        shell = ("bash", "-euo", "pipefail", "-c", commands)
        return run(shell, env=self._env, cwd=REPOSITORY, timeout=300)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
