"""All steps, in the order in which they are taken: what only reads comes first."""

from collections.abc import Callable

from hardware import claims, client, injected, memory, mig, mps, reads
from hardware.run import Run, Step
from hardware.steps import Change


def _step(
    name: str,
    do: Callable[[Run], None],
    does: str,
    *,
    changes: str = "",
    also: str = "",
    asks: str = "",
) -> Step:
    return Step(
        name=name,
        does=does,
        do=do,
        changes=frozenset(map(Change, changes.split())),
        also=frozenset(map(Change, also.split())),
        asks=tuple(asks.split()),
    )


STEPS = (
    _step("inventory", reads.inventory, "holds the driver's facts against nvidia-smi -q -x"),
    _step("uuids", reads.uuids, "reads the UUIDs in two processes", asks="uuid-form"),
    _step("read-time-slice", reads.time_slice, "reads the time-slice", asks="slice-read"),
    _step("slices", reads.slices, "starts the driver and waits for its slices"),
    _step("claim-gpu", claims.gpu, "prepares and unprepares a claim for the card"),
    _step(
        "claim-share",
        claims.share,
        "prepares one for a quarter of the card, by time-slicing",
    ),
    _step("container", injected.container, "runs nvidia-smi in a container with a claim"),
    _step("container-computes", injected.computes, "runs a CUDA program in such a container"),
    _step("computes", client.computes, "runs a CUDA program on this host"),
    _step(
        "set-time-slice",
        reads.set_time_slice,
        "sets each time-slice and reads it back",
        changes="time-slice",
        asks="slice-kept",
    ),
    _step(
        "claim-time-slicing",
        claims.time_slicing,
        "prepares a claim that sets the time-slice to Short",
        changes="time-slice",
    ),
    _step(
        "set-compute-mode",
        reads.compute_mode,
        "sets EXCLUSIVE_PROCESS and reads it back",
        changes="compute-mode",
        asks="compute-mode",
    ),
    _step(
        "claim-mps",
        claims.mps,
        "prepares a claim under MPS with limits",
        changes="mps",
        also="compute-mode",
    ),
    _step(
        "claim-share-mps",
        claims.share_by_mps,
        "prepares a claim for a quarter of the card by MPS",
        changes="mps",
        also="compute-mode",
    ),
    _step(
        "container-mps",
        injected.limited,
        "has a program in a container ask for more than such a claim's memory",
        changes="mps",
        also="compute-mode",
    ),
    _step(
        "mps-limits",
        mps.limits,
        "has an MPS client ask for more than its memory beside another",
        changes="mps",
    ),
    _step(
        "mps-limit-names",
        mps.limit_names,
        "sets memory limits by ordinal and by UUID",
        changes="mps",
        asks="mps-limit-name",
    ),
    _step(
        "mps-percentages",
        mps.percentages,
        "has an MPS client lower its percentage",
        changes="mps",
        asks="mps-percent",
    ),
    _step(
        "mps-shared-memory",
        mps.shared_memory,
        "looks for files in /dev/shm that processes of MPS map",
        changes="mps",
        asks="mps-shm",
    ),
    _step(
        "mps-exclusive",
        mps.exclusive,
        "runs a program beside MPS in EXCLUSIVE_PROCESS",
        changes="mps compute-mode",
        asks="mps-exclusive",
    ),
    _step(
        "memory-limit",
        memory.limit,
        "limits the memory of a control group",
        changes="memory-limit",
    ),
    _step(
        "cgroup-path",
        memory.other_path,
        "names a control group by another path",
        changes="memory-limit",
        asks="cgroup-path",
    ),
    _step(
        "mig-mode-while-open",
        mig.mode_while_open,
        "switches the MIG mode, alone and beside another process",
        changes="mig-mode",
        asks="mig-open",
    ),
    _step(
        "mig-device-names",
        mig.device_names,
        "makes a MIG device twice in one place",
        changes="mig-mode",
        asks="mig-uuid",
    ),
    _step(
        "claim-mig",
        claims.mig,
        "prepares a claim for a MIG device that the driver makes",
        changes="mig-mode",
    ),
)
