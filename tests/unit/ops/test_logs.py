"""Log lines as a person or a collector reads them."""

import io
import json
import logging
import warnings
from pathlib import Path

import pytest
import structlog

from dra_driver.ops.logs import configure_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def configured(
    level: str = "info", form: str = "auto", stream: io.StringIO | None = None
) -> io.StringIO:
    stream = stream if stream is not None else io.StringIO()
    configure_logs(level=level, form=form, stream=stream)
    return stream


def test_a_line_is_one_json_object_that_begins_with_time_level_and_event() -> None:
    out = configured()
    structlog.get_logger().info("claim prepared", claim="ns/a", path=Path("/x"), seconds=0.004)
    (line,) = out.getvalue().splitlines()
    event = json.loads(line)
    assert list(event)[:3] == ["timestamp", "level", "event"]
    assert event["timestamp"].endswith("Z")
    assert event["path"] == "/x"
    assert event["seconds"] == 0.004


def test_lines_below_the_level_are_left_out() -> None:
    out = configured("warning")
    structlog.get_logger().info("driver started")
    structlog.get_logger().warning("gpu lost")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["gpu lost"]


def test_a_terminal_gets_text() -> None:
    out = configured(stream=Terminal())
    structlog.get_logger().info("claim prepared", claim="ns/a")
    assert "claim prepared" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_a_traceback_stays_on_the_line_of_its_event() -> None:
    out = configured()
    try:
        int("broken")
    except ValueError:
        structlog.get_logger().exception("thread died")
    (line,) = out.getvalue().splitlines()
    assert "ValueError: invalid literal" in json.loads(line)["exception"]


def test_lines_of_libraries_look_the_same_and_name_their_logger() -> None:
    out = configured()
    logging.getLogger("urllib3.connectionpool").warning("retrying %s", "GET")
    logging.getLogger("urllib3.connectionpool").info("connection made")
    (line,) = out.getvalue().splitlines()
    event = json.loads(line)
    assert (event["event"], event["logger"]) == ("retrying GET", "urllib3.connectionpool")


def test_python_warnings_become_lines() -> None:
    out = configured()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old interface", UserWarning, stacklevel=1)
    assert "old interface" in json.loads(out.getvalue().splitlines()[0])["event"]


def test_facts_bound_to_a_thread_are_on_its_lines() -> None:
    out = configured()
    with structlog.contextvars.bound_contextvars(claim="ns/a", uid="u"):
        structlog.get_logger().info("claim prepared")
    event = json.loads(out.getvalue())
    assert (event["claim"], event["uid"]) == ("ns/a", "u")


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("form", ["json", "console"])
def test_only_lines_that_nobody_reads_are_lost(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in (Broken(), io.StringIO()):
        configured(form=form, stream=stream)
        stream.close()
        structlog.get_logger().info("claim prepared")
        logging.getLogger("urllib3").warning("retrying")
    assert capsys.readouterr().err == ""
