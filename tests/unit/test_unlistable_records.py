"""`status` and `cleanup` where records of claims cannot be listed: no claim is not the answer."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import make
from dra_driver import cli
from dra_driver.admin import removal
from dra_driver.admin.status.command import look
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import StateError

pytestmark = pytest.mark.usefixtures("logs_restored")

NOBODY = 65534
COMMANDS = ("status", "cleanup")
AWAY = "move away what is there; the driver makes the folder again"


def words(command: str, place: Path) -> list[str]:
    """A command line that looks below `place` and changes nothing."""
    line = [command, f"--kubelet-plugins-directory-path={place}"]
    if command == "cleanup":
        folders = ("kubelet-registrar-directory-path", "cdi-root", "cgroup-root")
        line += ["--dry-run", *(f"--{name}={place / name}" for name in folders)]
    return line


def a_file(folder: Path) -> None:
    folder.write_text("")


def a_circle(folder: Path) -> None:
    folder.symlink_to(folder)


@contextmanager
def without_rights() -> Iterator[None]:
    """Be a user who may not read what root may."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["claims", "quarantine"])
@pytest.mark.parametrize(
    ("obstacle", "cause"),
    [(a_file, "Not a directory"), (a_circle, "Too many levels of symbolic links")],
)
def test_a_file_in_place_of_a_folder_is_named_with_advice(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    obstacle: Callable[[Path], None],
    cause: str,
) -> None:
    directory = tmp_path / DRIVER_NAME
    Ledger(directory, boot_id="boot-1").write(make.record(make.gpu(0)))
    (directory / name).rename(directory / "moved")
    obstacle(directory / name)
    assert cli.main(words(command, tmp_path)) == 1
    said = capsys.readouterr()
    assert said.err == (
        f"error: cannot list the records of claims in {directory / name}: {cause}; {AWAY}\n"
    )
    assert said.out == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_as_the_drivers_directory_is_not_absence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    directory = tmp_path / DRIVER_NAME
    directory.write_text("precious")
    assert cli.main(words(command, tmp_path)) == 1
    assert capsys.readouterr().err == f"error: {directory} is not a folder: {AWAY}\n"
    assert directory.read_text() == "precious"


@pytest.mark.parametrize("closed", [".", "claims"])
def test_unreadable_records_give_advice_to_be_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    monkeypatch.chdir(tmp_path)  # what is above is for this user alone
    place = Path("place")
    Ledger(place / DRIVER_NAME, boot_id="boot-1").write(make.record(make.gpu(0)))
    for folder in (tmp_path, place, place / DRIVER_NAME):
        folder.chmod(0o755)
    folder = {".": place, "claims": place / DRIVER_NAME / closed}[closed]
    folder.chmod(0)
    specs = SpecStore(tmp_path / "cdi")
    try:
        with without_rights():
            for call in (
                lambda: look(place / DRIVER_NAME, "boot"),
                lambda: removal.look(place / DRIVER_NAME, specs, "boot"),
            ):
                with pytest.raises(StateError, match=r": Permission denied; run this as root, and"):
                    call()
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("command", COMMANDS)
def test_hidden_files_among_the_records_are_no_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    directory = tmp_path / DRIVER_NAME
    Ledger(directory, boot_id="boot-1")
    for folder in ("claims", "quarantine"):
        for name in (".uid-1.json.tmp", ".nfs0000001", ".hidden.json"):
            (directory / folder / name).write_text("{")
    assert cli.main(words(command, tmp_path)) == 0
    said = capsys.readouterr().out.replace(str(tmp_path), "")
    assert not any(word in said for word in ("uid-1", ".nfs", "hidden", "damaged"))
