"""The site of the documentation: what fails its build, and what is in it."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dra_driver import cli

REPOSITORY = Path(__file__).parents[3]
PICTURES = REPOSITORY / "docs" / "pictures"
README = """\
# Start

- [a page](docs/install.md#here)
- [no page](docs/gone.md)
- [no place on a page](docs/install.md#gone)
- [a manifest](manifests/some.yaml)
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with few pages, and with mistakes in them."""
    for path in ("hack/site", "pyproject.toml"):
        source, target = REPOSITORY / path, tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    (tmp_path / ".venv").symlink_to(REPOSITORY / ".venv")
    (tmp_path / "docs" / "decisions").mkdir(parents=True)
    (tmp_path / "manifests").mkdir()
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "docs" / "install.md").write_text("# Install\n\n## Here\n")
    (tmp_path / "docs" / "lonely.md").write_text("# Lonely\n")
    (tmp_path / "docs" / "decisions" / "0001-one.md").write_text("# 1. One\n")
    (tmp_path / "docs" / "decisions" / "README.md").write_text("# Decisions\n")
    (tmp_path / "manifests" / "some.yaml").write_text("kind: Some\n")
    return tmp_path


def test_a_build_names_every_mistake_and_fails(small: Path) -> None:
    done = subprocess.run(
        [small / "hack/site/build"], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 1
    said = done.stderr
    assert re.search(r"README\.md:4: .*target not found: 'docs/gone\.md'", said)
    assert re.search(r"README\.md:5: .*'gone'", said)
    assert re.search(r"lonely\.md: .*isn't included in any toctree", said)
    assert re.search(r"README\.md:\d+: .*nonexisting document 'docs/operations'", said)
    assert "README.md:3:" not in said
    assert "README.md:6:" not in said
    assert "0001-one" not in said

    start = (small / "build/site/index.html").read_text()
    (copy,) = re.findall(r'href="(_downloads/[^"]*/some\.yaml)"', start)
    assert (small / "build/site" / copy).read_text() == "kind: Some\n"
    loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"', start)
    loaded += re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="([^"]+)"', start)
    assert loaded
    assert not [address for address in loaded if "//" in address]


def test_pictures_are_shown_on_pages_and_need_nothing_else() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    texts = [page.read_text() for page in pages]
    found = list(PICTURES.iterdir())
    assert found
    for picture in found:
        root = ET.fromstring(picture.read_text())  # noqa: S314 (of this repository)
        assert root.find("{http://www.w3.org/2000/svg}title") is not None
        assert not re.findall(r"(?:href|src)=(?!\"#)|url\((?!#)|@import", picture.read_text())
        assert any(f"pictures/{picture.name})" in text for text in texts)


def test_the_picture_of_the_tools_shows_commands_that_there_are() -> None:
    shown = re.findall(r'class="command"[^>]*>([\w-]+)', (PICTURES / "tools.svg").read_text())
    assert shown
    assert {*shown} <= cli.COMMANDS.keys()


def test_the_readme_lists_the_pages_of_the_navigation_by_reader() -> None:
    """The captions say "I write pods", the rows "write pods"."""
    navigation = runpy.run_path(str(REPOSITORY / "hack" / "site" / "conf.py"))["NAVIGATION"]
    listed = (REPOSITORY / "README.md").read_text().partition("\n## All pages\n")[2]
    rows = dict(re.findall(r"^\| (\w[^|]*) \| (\[.*) \|$", listed, re.MULTILINE))
    found = {f"I {who}": re.findall(r"\]\(([^)]+)\)", pages) for who, pages in rows.items()}
    assert found == navigation


def test_the_list_of_decisions_has_each_with_its_title() -> None:
    folder = REPOSITORY / "docs" / "decisions"
    listed = re.findall(
        r"^(\d+)\. \[(.*)\]\((.*)\)$", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert [f"# {number}. {title}" for number, title, _ in listed] == [
        (folder / name).read_text().partition("\n")[0] for *_, name in listed
    ]
    assert [name for *_, name in listed] == sorted(path.name for path in folder.glob("0*.md"))
