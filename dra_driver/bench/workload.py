"""What a tenant does: its workload, as a value that runners pass on to it.

In: a scenario's keys for it. Out: a `Workload`. What it asks of a GPU is the same on every machine:
throughput is counted in units of work, not in kernel launches. bench/tenant/tasks.py does it with
CUDA.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MIB = 1 << 20
_MOST_REQUESTS = 10_000_000


class WorkloadKind(StrEnum):
    """What the work is, and what bounds it."""

    COMPUTE = "compute"
    """Multiply-adds in registers: bound only by the SMs."""
    BANDWIDTH = "bandwidth"
    """a = b + s·c over arrays larger than any cache: bound by the GPU's memory."""
    INFERENCE = "inference"
    """Requests at random times, each some matrix products: bound by latency."""
    MEMORY = "memory"
    """Takes memory until it has as much as it wants or is refused more, and works on that."""
    COMMAND = "command"
    """A user's own command, from its start to its end."""


class LatencyForm(StrEnum):
    """The format in which a user's own command reports latencies (bench/latencies.py)."""

    JSON = "json"
    PROMETHEUS = "prometheus"
    PERF_ANALYZER = "perf-analyzer"


class Strict(BaseModel):
    """Values that are read as they are, without conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Workload(Strict):
    """One workload. Fields that its kind does not use keep their defaults.

    `latency_metric` is the name of Prometheus' histogram or summary.
    """

    kind: Annotated[WorkloadKind, Field(strict=False)]
    seconds: Annotated[float, Field(gt=0, le=86400)] = 20.0
    warm_up: Annotated[float, Field(ge=0, le=3600)] = 2.0
    memory_mib: Annotated[int, Field(ge=0)] = 768
    rate: Annotated[float, Field(gt=0, le=100_000)] = 20.0
    layers: Annotated[int, Field(gt=0, le=10_000)] = 24
    width: Annotated[int, Field(ge=16, le=16384, multiple_of=16)] = 1024
    intensity: Annotated[int, Field(gt=0, le=1 << 30)] = 16384
    seed: int = 1
    command: tuple[str, ...] = ()
    latencies: Annotated[LatencyForm, Field(strict=False)] | None = None
    latency_metric: str = ""

    @model_validator(mode="after")
    def _command_where_it_belongs(self) -> Self:
        is_command = self.kind is WorkloadKind.COMMAND
        if bool(self.command) != is_command:
            raise ValueError("a command needs the work `command`")
        if self.latencies is not None and not is_command:
            raise ValueError("latencies are read for the work `command`; the others measure them")
        if bool(self.latency_metric) != (self.latencies is LatencyForm.PROMETHEUS):
            raise ValueError(
                "only latencies in Prometheus' format have the name of a histogram or summary "
                "(`latency_metric`), and need it"
            )
        return self

    @model_validator(mode="after")
    def _requests_can_be_counted(self) -> Self:
        requests = round(self.rate * self.seconds)
        if self.kind is WorkloadKind.INFERENCE and not 1 <= requests <= _MOST_REQUESTS:
            raise ValueError(
                f"{self.rate:g} requests a second for {self.seconds:g} s are {requests}: change"
                f" one of the two, for 1 to {_MOST_REQUESTS}"
            )
        return self

    def described(self) -> str:
        """Describe it in a line."""
        match self.kind:
            case WorkloadKind.COMPUTE:
                return f"compute-bound, {self.intensity} multiply-adds a thread and step"
            case WorkloadKind.BANDWIDTH:
                return f"memory-bandwidth-bound, over {self.memory_mib} MiB"
            case WorkloadKind.INFERENCE:
                return (
                    f"inference, {self.rate:g} requests/s for each tenant, of {self.layers} matrix"
                    f" products {self.width} wide"
                )
            case WorkloadKind.MEMORY:
                wanted = f"{self.memory_mib} MiB" if self.memory_mib else "all there is"
                return f"memory-hungry, wants {wanted}"
            case WorkloadKind.COMMAND:
                return "command: " + " ".join(self.command)
