"""The wheels as they are built: what a production install has, what simulator and benchmark add."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH = REPOSITORY / "dra_driver/bench"
SIMULATOR = REPOSITORY / "dra_driver/simulator"


def build(project: Path, folder: Path) -> Path:
    """Build a project's wheel as `pip install .` does, with the locked build backend."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=60)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-compile", "--disable-pip-version-check", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def dra_driver(target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command, outside of the checkout."""
    return subprocess.run(
        [sys.executable, "-m", "dra_driver", *words],
        env=os.environ | {"PYTHONPATH": str(target)},
        cwd=target,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def files(wheel: Path) -> set[str]:
    """The files of a wheel, without those that describe it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(REPOSITORY, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def simulator_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SIMULATOR, tmp_path_factory.mktemp("simulator-wheel"))


@pytest.fixture(scope="module")
def bench_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(BENCH, tmp_path_factory.mktemp("bench-wheel"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A production install, which no test changes."""
    target = tmp_path_factory.mktemp("target")
    install(wheel, target)
    return target


def test_the_wheel_has_the_driver_without_simulator_and_benchmark(wheel: Path) -> None:
    names = files(wheel)
    assert {"dra_driver/node/driver.py", "resource_nvidia_com/rules.py"} <= names
    assert [
        name for name in names if name.startswith(("dra_driver/bench", "dra_driver/simulator"))
    ] == []
    assert [name for name in names if name.endswith((".c", ".h"))] == []


def test_the_three_wheels_are_the_checkout_and_share_no_file(
    wheel: Path, bench_wheel: Path, simulator_wheel: Path
) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "dra_driver"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    sources = {name for name in listed.stdout.splitlines() if (REPOSITORY / name).exists()}
    sources -= {"dra_driver/bench/pyproject.toml", "dra_driver/simulator/pyproject.toml"}
    driver = {name for name in files(wheel) if name.startswith("dra_driver/")}
    bench, simulator = files(bench_wheel), files(simulator_wheel)
    assert driver | bench | simulator == sources
    assert len(driver) + len(bench) + len(simulator) == len(sources)


def test_a_production_install_lists_no_command_that_it_cannot_run(target: Path) -> None:
    done = dra_driver(target, "--help")
    assert done.returncode == 0
    assert "kubelet-plugin" in done.stdout
    listed = done.stdout.partition("commands:")[2].split()
    assert not {"bench", "simulate"} & set(listed)
    assert "simulate" not in dra_driver(target, "no-such-command").stderr


@pytest.mark.parametrize(
    ("words", "what", "folder"),
    [
        (("inspect", "--profile", "h100x8"), "simulator", "simulator"),
        (("bench", "processes", "--help"), "benchmark", "bench"),
    ],
)
def test_a_production_install_says_how_to_get_what_it_lacks(
    target: Path, words: tuple[str, ...], what: str, folder: str
) -> None:
    done = dra_driver(target, *words)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: the {what} or a package that it needs is not installed: ")
    assert f"`pip install ./dra_driver/{folder}`" in line


def test_the_simulators_wheel_adds_its_commands(
    tmp_path: Path, wheel: Path, simulator_wheel: Path
) -> None:
    for one in (wheel, simulator_wheel):
        with zipfile.ZipFile(one) as archive:  # pip installs one wheel into a --target
            archive.extractall(tmp_path)
    assert "simulate" in dra_driver(tmp_path, "--help").stdout
    profiles = dra_driver(tmp_path, "simulate", "profiles")
    assert profiles.returncode == 0, profiles.stderr
    assert "h100x8" in profiles.stdout
    slices = dra_driver(tmp_path, "inspect", "--slices", "--profile=t4x4", "--node-name=n1")
    assert slices.returncode == 0, slices.stderr
    assert "name: 00000-gpu.nvidia.com-n1" in slices.stdout


def test_the_benchmarks_wheel_adds_its_command(
    tmp_path: Path, wheel: Path, bench_wheel: Path
) -> None:
    for one in (wheel, bench_wheel):
        with zipfile.ZipFile(one) as archive:
            archive.extractall(tmp_path)
    assert "bench" in dra_driver(tmp_path, "--help").stdout
    listed = dra_driver(tmp_path, "bench", "list")
    assert listed.returncode == 0, listed.stderr
    assert "light-beside-heavy" in listed.stdout
