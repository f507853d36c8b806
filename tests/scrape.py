"""Metrics as a scraper that names no format gets them."""

from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


def metrics_text(application: "WSGIApplication") -> str:
    """Return what the application answers, which has to be text."""
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    answers: list[tuple[str, dict[str, str]]] = []

    def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
        answers.append((status, dict(headers)))

    body = b"".join(application(environ, start))
    [(status, headers)] = answers
    assert status == "200 OK"
    assert headers["Content-Type"].startswith("text/plain")
    return body.decode()
