"""What a check reports: how severe it is, what was seen, and what to do.

A check judges facts; it changes nothing, and does not decide how its findings are shown.
"""

from enum import StrEnum
from http import HTTPStatus

from msgspec import Struct

from dra_driver.errors import AccessError, DriverError

ADMIN = "run doctor with an admin's kubeconfig (--kubeconfig): the driver itself does not need this"


class Severity(StrEnum):
    """How severe a finding is, the most severe first."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    INFO = "info"
    OK = "ok"


class Seen(Struct, frozen=True, kw_only=True):
    """One thing that a check saw; `advice` is what to do, empty for nothing."""

    severity: Severity
    text: str
    advice: str = ""


class Finding(Struct, frozen=True, kw_only=True):
    """A thing that was seen, as it is reported: with the check that saw it, and why it matters.

    `is_answer` is false if the check could not be made.
    """

    id: str
    title: str
    severity: Severity
    seen: str
    why: str
    advice: str
    is_answer: bool = True


class Skipped(Struct, frozen=True, kw_only=True):
    """A check that was not made, and why."""

    id: str
    title: str
    reason: str


class Place(StrEnum):
    """What a check looks at."""

    NODE = "node"
    CLUSTER = "cluster"


def ok(text: str) -> Seen:
    """Report that something is as it should be."""
    return Seen(severity=Severity.OK, text=text)


def info(text: str, advice: str = "") -> Seen:
    """Report what is worth knowing."""
    return Seen(severity=Severity.INFO, text=text, advice=advice)


def warning(text: str, advice: str) -> Seen:
    """Report what works less well, or may do harm."""
    return Seen(severity=Severity.WARNING, text=text, advice=advice)


def error(text: str, advice: str) -> Seen:
    """Report what keeps pods from their GPUs."""
    return Seen(severity=Severity.ERROR, text=text, advice=advice)


def unknown(text: str, advice: str = "") -> Seen:
    """Report what could not be found out."""
    return Seen(severity=Severity.UNKNOWN, text=text, advice=advice)


def of_error(severity: Severity, failure: DriverError) -> Seen:
    """Report a DriverError, whose text is the cause and, after a semicolon, what to do.

    If doctor itself lacks a permission, the advice is to be an admin, not to grant it to a driver.
    """
    text, _, advice = str(failure).partition("; ")
    if isinstance(failure, AccessError) and failure.status == HTTPStatus.FORBIDDEN:
        advice = ADMIN
    return Seen(severity=severity, text=text, advice=advice)
