"""A release is refused while something of it is missing, and prepared in one step."""

import subprocess
from pathlib import Path

import pytest
from release import changelog, versions
from release.checks import UNRELEASED, complaints
from release.command import main

REPOSITORY = Path(__file__).resolve().parents[3]

CHANGELOG = """\
# Changelog

Words about it.

## Unreleased

### Added

- Something.

## 1.2.3 - 2026-02-28

- What came before.
"""
FILES = {
    "pyproject.toml": '[project]\nname = "dra-driver"\nversion = "1.2.3"\n',
    "dra_driver/bench/pyproject.toml": (
        '[project]\nversion = "1.2.3"\ndependencies = ["dra-driver==1.2.3"] # the same\n'
    ),
    "dra_driver/simulator/pyproject.toml": (
        '[project]\nversion = "1.2.3"\ndependencies = ["dra-driver==1.2.3"] # the same\n'
    ),
    "manifests/install.yaml": "        - image: dra-driver:1.2.3\n          x: 1\n",
    "manifests/chart/Chart.yaml": "apiVersion: v2\nversion: 1.2.3\nappVersion: 1.2.3\n",
    "README.md": "name the image `dra-driver:1.2.3`, which. See dra-driver:1.2.3.\n",
    "docs/image.md": "`dra-driver:1.2.3-simulator` is of @refs/tags/v1.2.3, too.\n",
    "CHANGELOG.md": CHANGELOG,
    "hack/generate": "#!/bin/sh\nexit 0\n",
}


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose version 1.2.3 may be released."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "hack" / "generate").chmod(0o755)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    git(tmp_path, "tag", "--annotate", "--message", "1.2.3", "v1.2.3")
    return tmp_path


def test_a_version_of_which_nothing_is_missing_may_go(repository: Path) -> None:
    assert complaints(repository, "v1.2.3") == []


def change(repository: Path, name: str, old: str, new: str) -> None:
    """Change a file, commit it, and move the tag there."""
    path = repository / name
    path.write_text(path.read_text().replace(old, new, 1))
    git(repository, "commit", "--quiet", "--all", "--message", "change")
    git(repository, "tag", "--force", "--annotate", "--message", "1.2.3", "v1.2.3")


@pytest.mark.parametrize(
    ("name", "old", "new", "place"),
    [
        ("dra_driver/simulator/pyproject.toml", 'version = "1.2.3"', 'version = "1.2.2"', ":2"),
        ("dra_driver/simulator/pyproject.toml", "==1.2.3", "==1.2.2", ":3"),
        ("manifests/install.yaml", "1.2.3", "1.2.2", ":1"),
        ("manifests/chart/Chart.yaml", "\nversion: 1.2.3", "\nversion: 1.2.2", ":2"),
        ("manifests/chart/Chart.yaml", "appVersion: 1.2.3", "appVersion: 1.2.2", ":3"),
        ("README.md", "dra-driver:1.2.3", "dra-driver:1.2.2", ":1"),
    ],
)
def test_a_place_with_another_version_is_named(
    repository: Path, name: str, old: str, new: str, place: str
) -> None:
    change(repository, name, old, new)
    assert complaints(repository, "v1.2.3") == [
        f"{name}{place} says 1.2.2, not 1.2.3: hack/release prepare writes it"
    ]


@pytest.mark.parametrize(("page", "words"), UNRELEASED.items())
def test_what_pages_say_before_the_first_release_is_known(page: str, words: str) -> None:
    version = versions.current(REPOSITORY)
    is_released = f"## {version} - " in (REPOSITORY / "CHANGELOG.md").read_text()
    assert (words in (REPOSITORY / page).read_text()) is not is_released


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("## 1.2.3 - 2026-02-28", "## 1.2.2 - 2026-02-28", "there is no section 1.2.3"),
        ("- What came before.", "", "the section 1.2.3 says nothing"),
        ("1.2.3 - 2026-02-28", "1.2.3", "is not '1.2.3 - YYYY-MM-DD'"),
        ("1.2.3 - 2026-02-28", "1.2.3 - 2026-02-30", "is not '1.2.3 - YYYY-MM-DD'"),
    ],
)
def test_a_changelog_without_the_version_is_refused(
    repository: Path, old: str, new: str, complaint: str
) -> None:
    change(repository, "CHANGELOG.md", old, new)
    (found,) = complaints(repository, "v1.2.3")
    assert found.startswith("CHANGELOG.md: ")
    assert complaint in found


def test_the_tag_has_to_be_the_versions(repository: Path) -> None:
    (found,) = complaints(repository, "v1.2.4")
    assert found == "the tag is v1.2.4, but pyproject.toml says 1.2.3: it has to be v1.2.3"


def test_the_tag_has_to_be_there_and_on_this_commit(repository: Path) -> None:
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "more")
    (found,) = complaints(repository, "v1.2.3")
    assert "the tag v1.2.3 is on another commit" in found
    git(repository, "tag", "--delete", "v1.2.3")
    (found,) = complaints(repository, "v1.2.3")
    assert found == "there is no tag v1.2.3: git tag --annotate v1.2.3"


def test_preparing_writes_the_version_everywhere_and_dates_the_changelog(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "1.3.0-rc.1"], repository) == 0
    assert "version 1.3.0-rc.1 is written" in capsys.readouterr().out
    said = [place.said for place in versions.places(repository)]
    assert said == ["1.3.0-rc.1"] * 12
    assert (repository / "docs" / "image.md").read_text() == (
        "`dra-driver:1.3.0-rc.1-simulator` is of @refs/tags/v1.3.0-rc.1, too.\n"
    )
    assert (repository / "manifests" / "install.yaml").read_text() == (
        "        - image: dra-driver:1.3.0-rc.1\n          x: 1\n"
    )
    titles = [
        section.title for section in changelog.sections((repository / "CHANGELOG.md").read_text())
    ]
    assert titles[0] == "Unreleased"
    assert titles[1].startswith("1.3.0-rc.1 - 20")
    assert titles[2] == "1.2.3 - 2026-02-28"
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "1.3.0-rc.1")
    git(repository, "tag", "--annotate", "--message", "rc", "v1.3.0-rc.1")
    assert main(["check", "--tag", "v1.3.0-rc.1"], repository) == 0
    assert capsys.readouterr().out == "v1.3.0-rc.1 can be released\n"
    assert main(["notes"], repository) == 0
    assert capsys.readouterr().out == "### Added\n\n- Something.\n"


def test_this_repository_says_one_version() -> None:
    version = versions.current(REPOSITORY)
    found = list(versions.places(REPOSITORY))
    assert len(found) >= 5
    assert [place for place in found if place.said != version] == []
