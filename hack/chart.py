"""Writes manifests/*.yaml from the chart.

In: helm and manifests/chart. Out: these files below a folder that stands for the repository's root.
"""

import argparse
import subprocess
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
CHART = Path("manifests/chart")
INSTALL = Path("manifests/install.yaml")
CLEANUP = Path("manifests/cleanup.yaml")
ALERTS = Path("manifests/alerts.yaml")
NAME = "dra-driver"
"""The name of release and namespace in both manifests."""

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


def rendered(helm: str, path: Path = INSTALL) -> str:
    """Return the manifest at a path."""
    lines = (line.rstrip() for line in template(helm, VALUES[path]).splitlines())
    text = "\n".join(line for line in lines if not line.startswith("# Source: "))
    # Each template ends with blank lines of its own.
    return HEADERS[path] + "".join(f"---\n{document.strip()}\n" for document in documents(text))


def alerts(helm: str) -> str:
    """Return the chart's alerts as a file of Prometheus' rules."""
    text = template(helm, "prometheusRule.enabled=true")
    rules = (document for document in documents(text) if "\nkind: PrometheusRule\n" in document)
    spec = yaml.safe_load(next(rules))["spec"]
    return ALERTS_HEADER + yaml.safe_dump(spec, sort_keys=False, width=100, allow_unicode=True)


def template(helm: str, values: str) -> str:
    """Return the chart as rendered by helm. Raises CalledProcessError; helm prints the reason."""
    words = ("--namespace", NAME, "--set", values)
    command = [helm, "template", NAME, str(REPOSITORY / CHART), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def documents(text: str) -> list[str]:
    """The documents of a YAML stream, without those that are only comments."""
    parts = f"\n{text}".split("\n---\n")
    return [part for part in parts if yaml.safe_load(part) is not None]


def main() -> None:
    """Write these files."""
    parser = argparse.ArgumentParser(description="write what is generated from the chart")
    parser.add_argument("helm", help="the program")
    parser.add_argument("folder", type=Path, help="stands for the repository's root")
    options = parser.parse_args()
    made = {path: rendered(options.helm, path) for path in VALUES}
    for path, text in (made | {ALERTS: alerts(options.helm)}).items():
        target = options.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    main()
