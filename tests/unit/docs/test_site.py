"""The site of the documentation: what fails its build, and what is in it."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

from dra_driver import cli

REPOSITORY = Path(__file__).parents[3]
PICTURES = REPOSITORY / "docs" / "pictures"


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


def test_the_picture_of_the_tools_groups_commands_as_the_help_does() -> None:
    _, *bands = (PICTURES / "tools.svg").read_text().split('<text class="place"')
    for band in bands:
        title = re.findall(r">([^<]+)<", band)[0]
        shown = re.findall(r'class="command"[^>]*>([a-z -]+?)(?: (?:pod/)?[A-Z]+)?<', band)
        assert shown
        assert {*shown} <= cli.GROUPS[title].keys()


def test_the_readme_lists_the_pages_of_the_navigation_by_reader() -> None:
    """The captions say "I write pods", the rows "write pods"."""
    navigation = runpy.run_path(str(REPOSITORY / "hack" / "site" / "conf.py"))["NAVIGATION"]
    listed = (REPOSITORY / "README.md").read_text().partition("\n## All pages\n")[2]
    rows = dict(re.findall(r"^\| (\w[^|]*) \| (\[.*) \|$", listed, re.MULTILINE))
    found = {f"I {who}": re.findall(r"\]\(([^)]+)\)", pages) for who, pages in rows.items()}
    assert found == navigation
    # By the names that the navigation has for them, which are their titles.
    for name, page in re.findall(r"\[([^]]+)\]\(([^)]+)\)", " ".join(rows.values())):
        title = (REPOSITORY / page).read_text().partition("\n")[0].removeprefix("# ")
        assert name.lower() == title.partition(":")[0].lower(), page


def test_the_list_of_decisions_has_each_with_its_title() -> None:
    folder = REPOSITORY / "docs" / "decisions"
    listed = re.findall(
        r"^(\d+)\. \[(.*)\]\((.*)\)$", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert [f"# {number}. {title}" for number, title, _ in listed] == [
        (folder / name).read_text().partition("\n")[0] for *_, name in listed
    ]
    assert [name for *_, name in listed] == sorted(path.name for path in folder.glob("0*.md"))
