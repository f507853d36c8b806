"""Logging: one JSON object per line, or aligned text on a terminal.

In: structlog events of this project, and what libraries send to the standard library's logging.
Out: lines on one stream, with timestamp (UTC, RFC 3339), level and event first. Logging is set up
in one place, once, when a command starts. If a line cannot be written (nobody reads the pipe any
more, the disk is full), only the line is lost: no claim fails because of a log.
"""

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO, cast

import structlog
from structlog.types import Processor

from dra_driver.host.printing import unescaped
from resource_nvidia_com.printable import printable

_ENCODER = json.JSONEncoder(default=str, ensure_ascii=False)
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_logs(*, level: str, form: str, stream: TextIO, for_good: bool = False) -> None:
    """Send structlog's and the standard library's lines to `stream`, as the settings say.

    If it is `for_good`, no other call in this process takes effect: loggers are made once.
    """
    # Loggers only write, flush, and call isatty.
    stream = cast("TextIO", _Forgiving(unescaped(stream)))
    if form == "auto":
        form = "console" if stream.isatty() else "json"
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render = _console(stream) if form == "console" else _json()
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=for_good,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    # Libraries log their own details at debug; only their problems belong here.
    logging.basicConfig(level=max(_LEVELS[level], logging.WARNING), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


class _Forgiving:
    """A stream whose failures affect nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._attempt(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def isatty(self) -> bool:
        with suppress(ValueError):
            return self._stream.isatty()
        return False

    def _attempt(self, act: Callable[[], object]) -> None:
        with suppress(OSError, ValueError):  # a ValueError when it is closed
            try:
                act()
            except BrokenPipeError:
                # For good: what is still buffered must not fail when the process ends, either.
                number = self._stream.fileno()  # before anything is opened
                nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(nowhere, number)
                os.close(nowhere)


def _json() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        _in_order,
        structlog.processors.JSONRenderer(serializer=_dump),
    ]


def _dump(event: object, **_: object) -> str:
    # Paths, exceptions and enums are written as text.
    # A file's name may not be text, and JSON does not escape marks of direction.
    return printable(_ENCODER.encode(event))


def _printable(
    _logger: object, _method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    return {key: printable(fact) if isinstance(fact, str) else fact for key, fact in event.items()}


def _in_order(
    _logger: object, _method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    head = {key: event[key] for key in ("timestamp", "level", "event") if key in event}
    return {**head, **event}


def _console(stream: TextIO) -> list[Processor]:
    colors = stream.isatty() and not os.environ.get("NO_COLOR")
    # structlog would load rich for tracebacks if it is installed; a node agent needs no colours.
    plain = structlog.dev.plain_traceback
    return [_printable, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
