"""Writes what is made from the chart: manifests/*.yaml, and the table of docs/install.md.

In: helm, manifests/chart and the page as it is. Out: these files below a folder that stands for the
repository's root. The table has a row for each value that values.yaml describes by a comment above
it; what lies below such a value belongs to its default.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
CHART = Path("manifests/chart")
INSTALL = Path("manifests/install.yaml")
CLEANUP = Path("manifests/cleanup.yaml")
ALERTS = Path("manifests/alerts.yaml")
PAGE = Path("docs/install.md")
NAME = "dra-driver"
"""Of release and namespace in both manifests."""

BEGIN = "<!-- Written by hack/generate from manifests/chart/values.yaml. -->\n"
END = "<!-- end of what is written by hack/generate -->\n"
HEADERS = {
    INSTALL: f"""\
# Everything a cluster needs, with the chart's default values: kubectl apply -f {INSTALL}
#
# Written by hack/generate from {CHART}: change that, not this file. Other values, where helm cannot
# install: helm template {NAME} {CHART} --namespace {NAME} --set createNamespace=true --set …
""",
    CLEANUP: f"""\
# Takes what the driver has left off each GPU node, once {INSTALL} has been deleted:
# kubectl apply -f {CLEANUP}, and kubectl delete -f {CLEANUP} when its DaemonSet is ready.
#
# Written by hack/generate from {CHART}: change that, not this file. Who installed with other values
# needs the same here: helm template {NAME} {CHART} --namespace {NAME} --set createNamespace=true
# --set cleanup.enabled=true --set …
""",
}
ALERTS_HEADER = f"""\
# The chart's alerts as a file of rules, for a Prometheus without its operator (rule_files). The job
# of the driver's scrape config is {NAME}-metrics here, and its series have the label `node`.
#
# Written by hack/generate from {CHART}: change that, not this file.
"""
VALUES = {INSTALL: "createNamespace=true", CLEANUP: "createNamespace=true,cleanup.enabled=true"}


class ChartError(Exception):
    """The chart cannot be rendered, or the page has no place for the table; the text says why."""


def rendered(helm: str, path: Path = INSTALL) -> str:
    """Return the manifest at a path. Raises ChartError if helm refuses the chart."""
    lines = (line.rstrip() for line in template(helm, VALUES[path]).splitlines())
    text = "\n".join(line for line in lines if not line.startswith("# Source: "))
    # Each template ends with blank lines of its own.
    return HEADERS[path] + "".join(f"---\n{document.strip()}\n" for document in documents(text))


def alerts(helm: str) -> str:
    """Return the chart's alerts as a file of Prometheus' rules. Raises ChartError."""
    text = template(helm, "prometheusRule.enabled=true")
    rules = (document for document in documents(text) if "\nkind: PrometheusRule\n" in document)
    spec = yaml.safe_load(next(rules))["spec"]
    return ALERTS_HEADER + yaml.safe_dump(spec, sort_keys=False, width=100, allow_unicode=True)


def template(helm: str, values: str) -> str:
    """Return what helm makes of the chart. Raises ChartError if it refuses."""
    words = ("--namespace", NAME, "--set", values)
    command = [helm, "template", NAME, str(REPOSITORY / CHART), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChartError(done.stderr.strip())
    return done.stdout


def documents(text: str) -> list[str]:
    """The documents of a YAML stream, without those of comments alone."""
    parts = f"\n{text}".split("\n---\n")
    return [part for part in parts if yaml.safe_load(part) is not None]


def described(text: str) -> Iterator[tuple[str, str, object]]:
    """Each value with a comment above it: its key in full, the comment, and its default."""
    lines = text.splitlines()

    def walk(node: yaml.Node, above: tuple[str, ...]) -> Iterator[tuple[str, str, object]]:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            path = (*above, key.value)
            words = comment(lines, key.start_mark.line)
            if words:
                yield ".".join(path), words, plain(value)
            else:
                yield from walk(value, path)

    if (root := yaml.compose(text, yaml.SafeLoader)) is not None:
        yield from walk(root, ())


def plain(node: yaml.Node) -> object:
    """The value of a YAML node."""
    return yaml.safe_load(yaml.serialize(node))


def comment(lines: list[str], number: int) -> str:
    """The comment that ends on the line above this one."""
    first = number
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(line.lstrip(" #") for line in lines[first:number])


def table(values: str) -> str:
    """The values as a table in Markdown."""
    rows = [
        f"| `{key}` | {shown(default)} | {words.replace('|', chr(92) + '|')} |"
        for key, words, default in described(values)
    ]
    return "\n".join(["| value | default | what |", "|---|---|---|", *rows, ""])


def shown(default: object) -> str:
    """A default as a cell; a long one is in values.yaml."""
    if default in ("", [], {}):
        return ""
    text = json.dumps(default) if not isinstance(default, str) else default
    return f"`{text}`" if len(text) <= 60 else "see `values.yaml`"


def page(before: str, values: str) -> str:
    """The page with the table as it is now.

    Raises ChartError if the page does not say where the table is.
    """
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ChartError(f"{PAGE} has no place for the table: {BEGIN.strip()} … {END.strip()}")
    return f"{head}{begin}\n{table(values)}\n{end}{tail}"


def main() -> int:
    """Write these files; return the exit status."""
    parser = argparse.ArgumentParser(description="write what is generated from the chart")
    parser.add_argument("helm", help="the program")
    parser.add_argument("folder", type=Path, help="stands for the repository's root")
    options = parser.parse_args()
    values = (REPOSITORY / CHART / "values.yaml").read_text()
    try:
        made = {
            **{path: rendered(options.helm, path) for path in VALUES},
            ALERTS: alerts(options.helm),
            PAGE: page((REPOSITORY / PAGE).read_text(), values),
        }
    except ChartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path, text in made.items():
        target = options.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
