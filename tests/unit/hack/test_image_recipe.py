"""Under which key an image is kept, how it is named, and what Dockerfile and locks agree on."""

import re
import subprocess
from pathlib import Path

import pytest
from image.recipe import REPOSITORY, Recipe, sources, version

FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.3"\n',
    "Dockerfile": "FROM scratch\n",
    "dra_driver/node/driver.py": "",
    "dra_driver/bench/command.py": "",
    "dra_driver/simulator/cli.py": "",
    "hack/image/rootfs": "",
    "hack/image/command.py": "",
    "docs/image.md": "",
    "tests/test_x.py": "",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def recipe(repository: Path, target: str = "driver", arch: str = "amd64") -> Recipe:
    return Recipe(target=target, arch=arch, repository=repository)


def test_images_are_named_as_the_manifests_name_them() -> None:
    named = {
        found
        for path in sorted((REPOSITORY / "manifests").glob("*.yaml"))
        for found in re.findall(r"image: (\S+)", path.read_text())
    }
    mine = recipe(REPOSITORY).reference.removeprefix("docker.io/library/")
    assert named == {mine}
    assert recipe(REPOSITORY, "simulator").reference.endswith(f":{version()}-simulator")


@pytest.mark.parametrize(
    ("path", "is_new"),
    [
        ("dra_driver/node/driver.py", True),
        ("dra_driver/new.py", True),
        ("hack/image/rootfs", True),
        ("Dockerfile", True),
        ("dra_driver/bench/command.py", False),
        ("dra_driver/simulator/cli.py", False),
        ("hack/image/command.py", False),
        ("docs/image.md", False),
        ("tests/test_x.py", False),
    ],
)
def test_an_image_is_built_again_when_something_in_it_changed(
    repository: Path, path: str, is_new: bool
) -> None:
    before = recipe(repository).key
    assert recipe(repository).key == before
    (repository / path).write_text("changed")
    assert (recipe(repository).key != before) == is_new


# The files of this repository


def locked(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes by package of a lock file."""
    text = (REPOSITORY / name).read_text().replace("\\\n", "")
    found = re.findall(r"^([a-z0-9-]+)==(\S+)(.*)$", text, re.MULTILINE)
    return {
        package: (version, frozenset(re.findall(r"sha256:\w+", rest)))
        for package, version, rest in found
    }


@pytest.mark.parametrize("name", ["hack/image/runtime.lock", "hack/image/build.lock"])
def test_the_image_has_the_very_packages_that_are_tested(name: str) -> None:
    everything, image = locked("requirements.lock"), locked(name)
    assert len(image) >= 5
    for package, pinned in image.items():
        assert everything[package] == pinned, package


def test_nothing_that_tests_or_linters_need_is_in_the_image() -> None:
    assert not {"pytest", "hypothesis", "mypy", "ruff", "uv", "aiohttp", "hatchling"} & set(
        locked("hack/image/runtime.lock")
    )


def test_a_build_sees_what_the_dockerfile_copies_and_nothing_else() -> None:
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    copied = {
        word.removeprefix("./")
        for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE)
        for word in line.split()[:-1]
    }
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    assert copied == allowed
    deciding = sources(REPOSITORY)
    for path in copied:
        assert any(one == path or one.startswith(f"{path}/") for one in deciding), path


def test_clusters_get_the_target_without_the_simulator_unless_they_ask() -> None:
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    targets = re.findall(r"^FROM .* AS (\w+)$", dockerfile, re.MULTILINE)
    assert targets[-1] == "driver"
    driver = dockerfile.rpartition("AS driver")[2]
    assert re.findall(r"--from=(\S+) (\S+)", driver) == [("build", "/rootfs")]
