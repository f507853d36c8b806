"""The questions that documentation leaves open, and the known answers.

`docs/hardware.md` has them as a table, which tests/unit/hack/test_hardware.py compares. The
simulator's answers are checked by tests/contract/test_hardware_run.py; they say nothing about
cards.
"""

from dataclasses import dataclass

NOT_SEEN = "*not yet seen*"
NOT_SIMULATED = "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, what simulated H100s answer, and what a card has answered."""

    id: str
    text: str
    simulated: str = NOT_SIMULATED
    card: str = NOT_SEEN


QUESTIONS = (
    Question(
        id="mig-open",
        text="Does the MIG mode change while another process has NVML open?",
        simulated="No: NVML says that the card is in use. Alone it changes at once.",
    ),
    Question(
        id="mig-uuid",
        text="What names do MIG devices have, and does one that is made again have the same?",
        simulated="MIG- and 32 digits; made again in the same place it has the same UUID.",
    ),
    Question(
        id="slice-read",
        text="Can the time-slice be read?",
        simulated="Yes: nvidia-smi compute-policy -l says Default.",
        card="H100, R580: yes, as simulated.",
    ),
    Question(
        id="slice-kept",
        text="Is a time-slice read back as it was set?",
        simulated="Yes: each of the four is read back as it was set.",
    ),
    Question(
        id="compute-mode",
        text="Does EXCLUSIVE_PROCESS take effect at once?",
        simulated="Yes: it is read back, without a reset.",
    ),
    Question(
        id="mps-exclusive",
        text="Does EXCLUSIVE_PROCESS keep out programs that do not find the MPS daemon?",
    ),
    Question(
        id="mps-percent",
        text="Can a client lower its percentage where the daemon's default is 100?",
    ),
    Question(
        id="cgroup-path",
        text="Does NVML know a control group by a path that is not below /sys/fs/cgroup?",
        simulated="No: NVML takes a group by the usual path alone.",
    ),
    Question(
        id="mps3-group",
        text="Does MPS (R620) choose a namespace by a client's control group, as the host has it?",
    ),
    Question(
        id="mps3-deeper",
        text="Does a group count that is deeper than `cgroup_depth` says?",
    ),
    Question(
        id="mps3-later",
        text="Can a namespace for a control group be made while the daemon runs?",
    ),
    Question(
        id="mps3-partition",
        text="Does a namespace's SM partition hold against a client that names another?",
    ),
    Question(
        id="mps3-root",
        text="What can root in a container do at the daemon's socket?",
    ),
)


def table() -> str:
    """Return them as a table in Markdown."""
    head = "| question | simulated GPUs | a card |\n|---|---|---|\n"
    rows = (f"| {asked.text} | {asked.simulated} | {asked.card} |\n" for asked in QUESTIONS)
    return head + "".join(rows)
