"""The MPS domains of a node with NVIDIA's own programs, and supervisors in this process."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
import structlog
from structlog.types import EventDict

from dra_driver.mps import processes
from dra_driver.mps.domain import DomainId
from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.mps import MpsDomains
from worlds.node import MakeNode
from worlds.played_mps import Life

_DIGITS = 32
"""Of a token; what tells incarnations of a shared domain apart has fewer, and is no secret."""

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]


@pytest.fixture(autouse=True)
def tokens_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test in which a domain's token comes into a log line, or a file for the driver.

    A tenant that knew it could pass a process of its own off as the daemon.
    """
    made: list[str] = []
    said: list[str] = []

    def token(size: int, real: Callable[[int], str] = secrets.token_hex) -> str:
        made.append(real(size))
        return made[-1]

    def spy(_logger: object, _method: str, event: EventDict) -> EventDict:
        said.append(str(event))
        return event

    monkeypatch.setattr(secrets, "token_hex", token)
    structlog.configure(processors=[spy, *structlog.get_config()["processors"]])
    yield
    files = [path for path in tmp_path.rglob("status/*.json") if path.is_file()]
    told = [*said, *(path.read_text(errors="replace") for path in files)]
    of_daemons = [one for one in made if len(one) == _DIGITS]
    assert not [text for text in told if any(one in text for one in of_daemons)]


@pytest.fixture
def mps(make_node: MakeNode, needs_root: None, real_userspace: None) -> MpsDomains:
    return make_node(userspace="real").mps


@pytest.fixture
def run(mps: MpsDomains) -> Iterator[Run]:
    """Runs a supervisor until the test ends."""
    with ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture
def life(tmp_path: Path, needs_root: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    """The life of a claim's domain."""
    made = Life(tmp_path, DomainId("claim"))
    monkeypatch.setattr(processes, "kill", made.kill)
    yield made
    made.close()
