"""Settings of the documentation site, which hack/site/build makes from this repository with Sphinx.

In: README.md as the start page, and the Markdown pages that `include_patterns` names, each at its
place: links between them are the same on the site as in the repository. A link to any other file
here leads to a copy of it, which becomes part of the site. Out: HTML without anything from another
host. Rule: Sphinx's warnings are errors, so the build fails on links, anchors and navigation
entries that lead nowhere, and on pages that are not in the navigation.
"""

import re
import shutil
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

REPOSITORY = Path(__file__).resolve().parents[2]
_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

project = _PROJECT["name"]
release = version = _PROJECT["version"]
project_copyright = ""

extensions = ["myst_parser", "sphinx_copybutton"]
copybutton_prompt_text = "$ "  # commands are copied without the prompt and their output
copybutton_copy_empty_lines = False  # they may be part of the output
root_doc = "README"
include_patterns = [
    *("*.md", "changes/README.md", "hack/cluster/README.md"),
    *("docs/**.md", "manifests/demos/**README.md"),
]
exclude_patterns = [".*", "build", "dist", "tests", "dra_driver", "api"]
myst_heading_anchors = 4  # with GitHub's names for them
# Shortened examples are no valid JSON or YAML; what no release has yet stands below no title.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_static_path = ["static"]
pygments_style = "default"
pygments_dark_style = "github-dark"

NAVIGATION = {
    "I write pods": [
        "docs/writing-pods.md",
        "docs/shares.md",
        "docs/mig.md",
        "docs/mps.md",
        "docs/time-slicing.md",
        "docs/choosing.md",
        "docs/explain.md",
        "docs/converting.md",
        "manifests/demos/README.md",
    ],
    "I run a cluster": [
        "docs/install.md",
        "docs/compatibility.md",
        "docs/migrating-from-the-device-plugin.md",
        "docs/taking-over.md",
        "docs/passthrough.md",
        "docs/operations.md",
        "docs/troubleshooting.md",
        "docs/gather.md",
        "docs/health.md",
        "docs/usage.md",
        "docs/works-with.md",
        "docs/security.md",
        "docs/performance.md",
        "docs/hardware.md",
    ],
    "I look something up": [
        "docs/glossary.md",
        "docs/claim-configs.md",
        "docs/share-config.md",
        "docs/device-attributes.md",
        "docs/claim-status.md",
        "docs/device-metadata.md",
        "docs/settings.md",
        "docs/image.md",
        "docs/not-supported.md",
        "CHANGELOG.md",
    ],
    "I change the code": [
        "CONTRIBUTING.md",
        "changes/README.md",
        "CODE_OF_CONDUCT.md",
        "GOVERNANCE.md",
        "SECURITY.md",
        "docs/how-it-works.md",
        "docs/simulator.md",
        "hack/cluster/README.md",
        "docs/testing.md",
        "docs/chaos.md",
        "docs/decisions/README.md",
    ],
}
"""The pages by the captions of the site's navigation, which name their readers."""

LISTS = {"docs/decisions/README": ["0*.md"], "manifests/demos/README": ["*/README.md"]}
"""Pages with one entry in the navigation, each with the pages that it lists."""


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append to a page the directives for Sphinx's navigation, which files lack; drop badges."""
    if page == root_doc:
        source[0] = re.sub(r"(?m)^\[!\[.*\n", "", source[0])  # badges are images of other hosts
        source[0] += "".join(
            toctree(pages, f":caption: {caption}") for caption, pages in NAVIGATION.items()
        )
    elif page in LISTS:
        source[0] += toctree(LISTS[page])


def toctree(pages: list[str], *options: str) -> str:
    """The directive that puts pages into the navigation."""
    lines = [*options, ":glob:", ":hidden:", "", *(page.removesuffix(".md") for page in pages)]
    return "\n\n```{toctree}\n" + "\n".join(lines) + "\n```\n"


def write_index(app: Sphinx, failure: Exception | None) -> None:
    """Copy the start page to the file name that web servers expect."""
    if failure is None and app.builder.name == "html":
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Register the functions that Sphinx calls for each page and at the end."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", write_index)
