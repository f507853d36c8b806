"""The command line: which sub-command, and errors on one line."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver import cli
from dra_driver.admin import program

MODULE = """
from dra_driver.commands.command_line import CommandSettings, option
from dra_driver.errors import DeviceError

class Probe(CommandSettings, variables=True):
    node_name: str = option()
    probe_port: int = option(default=1)
    v: int = option(default=0)
    fail: bool = option(default=False)

    def cli_cmd(self) -> None:
        if self.fail:
            raise DeviceError("GPU 3 is lost: reset it")
        print(f"probed {self.node_name}")

class Own(CommandSettings):
    shared_port: int = option(default=1, names=("port_for_all",), variable=True)
    own_port: int = option(default=1)
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probe_command.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("NODE_NAME", raising=False)
    command = cli.Command(target="probe_command:Probe")
    monkeypatch.setattr(program, "COMMANDS", {"probe": command})
    monkeypatch.delitem(sys.modules, "probe_command", raising=False)


@pytest.mark.usefixtures("probe")
def test_a_sub_command_gets_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "--node-name", "n1"]) == 0
    assert capsys.readouterr().out == "probed n1\n"
    assert gc.isenabled()


@pytest.mark.usefixtures("probe")
def test_an_error_of_the_driver_is_one_line_and_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["probe", "--node-name", "n1", "--fail"]) == 1
    assert capsys.readouterr().err == "error: GPU 3 is lost: reset it\n"


@pytest.mark.usefixtures("probe")
def test_each_wrong_setting_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "--probe-port", "many"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: --node-name (or NODE_NAME) is missing",
        "error: --probe-port (or PROBE_PORT): 'many' is not a valid integer",
    ]


@pytest.mark.usefixtures("probe")
def test_a_misspelt_flag_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "--node-name", "n1", "--prob-port", "2"]) == 2
    assert "did you mean '--probe-port'?" in capsys.readouterr().err


@pytest.mark.usefixtures("probe")
def test_a_flag_of_one_letter_may_have_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--v=4"], ["--v", "4"], ["-v", "4"]):
        assert cli.main(["probe", "--node-name", "n1", *words]) == 0
    assert cli.main(["probe", "--node-name", "n1", "-v", "x"]) == 2
    assert "error: -v (or V): " in capsys.readouterr().err


@pytest.mark.usefixtures("probe")
def test_only_settings_of_the_driver_have_variables_in_other_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        program.COMMANDS,  # type: ignore[arg-type]
        "own",
        cli.Command(target="probe_command:Own"),
    )
    monkeypatch.setenv("PORT_FOR_ALL", "one")
    monkeypatch.setenv("OWN_PORT", "two")
    assert cli.main(["own"]) == 2
    assert capsys.readouterr().err == (
        "error: --shared-port (or SHARED_PORT): 'one' is not a valid integer\n"
    )


def test_an_unknown_command_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inpsect"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'inpsect': did you mean 'inspect'?\n"


def test_an_unknown_command_says_where_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for words, where in ((["x"], "dra-driver"), (["simulate", "x"], "dra-driver simulate")):
        assert cli.main(words) == 2
        assert capsys.readouterr().err == (
            f"error: unknown command 'x': `{where} --help` lists what there is\n"
        )


def test_help_lists_the_commands_by_where_they_run_each_on_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for title, lines in program.GROUPS.items():
        rows = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [row.split("  ", 2)[1] for row in rows] == [*lines]
        assert [row.rpartition("  ")[2] for row in rows] == [*lines.values()]
    named = {line.split()[0] for lines in program.GROUPS.values() for line in lines}
    assert named == {*program.COMMANDS}


def test_no_command_shows_the_help_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "Usage: dra-driver" in capsys.readouterr().err


def test_the_version_is_that_of_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("dra-driver ")


def test_asking_for_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from dra_driver import cli; cli.main(['--help']); "
        "sys.exit(bool({'pydantic', 'grpc', 'kubernetes', 'pynvml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0
