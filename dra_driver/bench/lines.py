"""The messages of tenants to their runner: each is one line of JSON on stdout.

Other output of a program or library is skipped; an invalid message is an error, not a figure. A
pod's log has the same lines.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dra_driver.bench.model import Amount, Card, Count, Latency, Percent, Usage
from dra_driver.bench.workload import Strict, Workload
from dra_driver.errors import DeviceError

MARK = '{"bench":1,'
"""Every message begins with this."""

_LONGEST = 1 << 20


class _Line(Strict):
    bench: Literal[1] = 1


class Ready(_Line):
    """The tenant can begin: its context, kernels and memory are ready.

    `at` and all other moments are in seconds since its machine started, as in /proc/uptime: all
    containers of a machine share that clock, and a shell can read it. `mps` is the pipe folder of
    the MPS daemon whose client it should be; empty for none.
    """

    event: Literal["ready"] = "ready"
    at: Amount
    card: Card | None = None
    is_simulated: bool = False
    mps: str = ""
    context_seconds: Amount | None = None
    memory_mib: Count | None = None
    refused_mib: Count | None = None


class Waiting(_Line):
    """The tenant runs and waits for the moment to begin."""

    event: Literal["waiting"] = "waiting"
    at: Amount


class Done(_Line):
    """The tenant has worked. Without `steps` its GPU is simulated, and there is no result."""

    event: Literal["done"] = "done"
    began: Amount
    seconds: Amount
    late_seconds: Amount = 0.0
    steps: Count | None = None
    units: Amount = 0.0
    unit: str = ""
    latency: Latency | None = None
    usage: Usage | None = None
    busy_sm_percent: Percent | None = None
    bandwidth_percent: Percent | None = None


class Ended(_Line):
    """A user's own command has ended, `seconds` after its beginning."""

    event: Literal["ended"] = "ended"
    began: Amount
    seconds: Amount
    late_seconds: Amount = 0.0


class Failed(_Line):
    """The tenant could not continue."""

    event: Literal["failed"] = "failed"
    reason: str


Said = Ready | Waiting | Done | Ended | Failed

_SAID: TypeAdapter[Said] = TypeAdapter(Annotated[Said, Field(discriminator="event")])


class Spec(Strict):
    """What a tenant is given when it is started.

    Attributes:
        number: which of the tenants it is; 0 is the first.
        start: the file that will contain the moment at which all begin.
        patience: how many seconds it waits for that.
        gpu: its UUID, if NVML shows this process other GPUs, too; otherwise the first.
        watches: whether it asks NVML for the card's usage while it works.
    """

    number: Count
    work: Workload
    start: str
    patience: Amount = 600.0
    driver_root: str = "/"
    gpu: str = "0"
    watches: bool = False


def line(said: Said) -> str:
    """Return a tenant's message as a line without its end."""
    text = said.model_dump_json(exclude_none=True)
    if not text.startswith(MARK):
        raise AssertionError(text)
    return text


def heard(text: str) -> Said | None:
    """Return the message in a line; None for other output.

    Raises DeviceError for an invalid message.
    """
    if not text.startswith(MARK):
        return None
    try:
        return _SAID.validate_json(text[:_LONGEST])
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise DeviceError(
            f"a tenant's output is not understood ({fault['msg']}): is its image"
            " of another version?"
        ) from error
