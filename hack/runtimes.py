"""Tests on which container runtimes pods get what this driver gives: `hack/runtimes.py [WORD …]`.

On a cluster of each pair of runtimes, one after the other, it runs the end-to-end tests that depend
on the runtime, and writes a row of docs/compatibility.md. With words, it runs only pairs that have
all of them, such as `crio crun`. As root; three minutes for each pair on two cores, and half an
hour more if all programs have to be compiled.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cluster.binaries import FETCH_ENV, groups_of, of_this_user
from cluster.errors import ClusterError
from cluster.progress import Progress
from cluster.versions import DEFAULT_MINOR, resolve
from reports import cases

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "compatibility.md"
BEGIN = "<!-- Written by hack/runtimes.py. -->"
END = "<!-- end of what is written by hack/runtimes.py -->"
HEAD = ("container runtime", "calls", "tests passed", "on")
TESTS = (
    "test_nothing.py",
    "test_whole_gpus.py::test_a_pods_containers_see_the_one_gpu_that_it_was_given",
    "test_whole_gpus.py::test_a_limit_of_nvidia_com_gpu_gives_that_many_gpus",
    "test_whole_gpus.py::test_pods_keep_their_gpus_when_the_container_runtime_is_killed",
    "test_claim_status.py::test_a_mig_device_is_named_by_its_own_uuid",
    "test_sharing.py::test_a_time_slice_stays_until_the_last_pod_of_the_claim_is_gone",
    "test_sharing.py::TestMps::test_containers_are_clients_of_a_daemon_with_the_claims_limits",
    "test_sharing.py::TestMps::test_containers_share_memory_and_pipes_with_the_daemon",
    "test_sharing.py::TestMps::test_a_pods_own_shared_memory_gives_way_to_that_of_mps",
    "test_device_metadata.py::test_whole_gpus_of_a_template_are_told_where_the_pods_spec_says",
    "test_device_metadata.py::test_no_container_changes_its_file_not_even_as_root",
    "test_device_metadata.py::test_with_a_read_only_volume_in_the_way_the_pods_event_says_so",
    "test_driver_layouts.py::test_a_cuda_image_finds_the_running_driver_without_hooks",
    "test_driver_layouts.py::test_any_image_finds_the_running_driver_with_hooks",
)

UNIFIED = "/sys/fs/cgroup/unified"
WITHOUT_V2 = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    *(f'umount {UNIFIED} && exec "$@"', "sh"),
)
"""Runs a command that does not see cgroup v2 beside v1: with both, crun starts no container."""

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A container runtime, and the OCI runtime that it calls."""

    runtime: str = "containerd"
    oci: str = "runc"
    containerd: str = "2"

    def __str__(self) -> str:
        return (
            f"{self.runtime} {self.containerd if self.runtime == 'containerd' else ''} {self.oci}"
        )

    def row(self) -> Row:
        """Run the tests; return the row of the table.

        Raises ClusterError if a program cannot be fetched.
        """
        today = f"{datetime.now(tz=UTC):%-d %B %Y}"
        name = "CRI-O" if self.runtime == "crio" else "containerd"
        versions = resolve(DEFAULT_MINOR, self.containerd)
        store = of_this_user(Progress(stream=sys.stderr))
        programs = store.fetch(versions, groups_of(self.runtime, self.oci))
        known = [version_of(programs.path(one)) for one in (self.runtime, self.oci)]
        return f"{name} {known[0]}", f"{self.oci} {known[1]}", self._run(), today

    def _run(self) -> str:
        chosen = {"E2E_RUNTIME": self.runtime, "E2E_OCI": self.oci, FETCH_ENV: "never"}
        chosen |= {"E2E_CONTAINERD": self.containerd, "E2E_KUBERNETES": DEFAULT_MINOR}
        with tempfile.TemporaryDirectory(prefix="rt-") as folder:
            report = Path(folder) / "report.xml"
            command = (
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--timeout", "900"),
                *("-m", "e2e", "--junit-xml", str(report), *(f"tests/e2e/{one}" for one in TESTS)),
            )
            env = {"E2E_CLUSTER": "rt", **os.environ, **chosen}
            without = WITHOUT_V2 if self.oci == "crun" and os.path.ismount(UNIFIED) else ()
            subprocess.run((*without, *command), cwd=REPOSITORY, env=env, check=False)
            return passed(report)


PAIRS = (
    Pair(containerd="1.7"),
    Pair(),
    Pair(oci="crun"),
    Pair(runtime="crio"),
    Pair(runtime="crio", oci="crun"),
)


def passed(report: Path) -> str:
    """Return how many tests of a report passed, and which did not."""
    ran = [one for one in cases(report) if one.find("skipped") is None]
    bad = (one for one in ran if one.find("failure") is not None or one.find("error") is not None)
    failed = [f"`{one.get('name')}`" for one in bad]
    if failed or not ran:
        return f"{len(ran) - len(failed)} of {len(ran)}; not {', '.join(failed) or 'one'}"
    return f"all {len(ran)}"


def with_row(page: str, row: Row) -> str:
    """Return the page with a row, which replaces one of the same runtimes."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = (line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:])
    rows = {_same(line): tuple(line) for line in lines} | {_same(row): row}
    told = (HEAD, ("---",) * len(HEAD), *rows.values())
    text = "\n".join(f"| {' | '.join(one)} |" for one in told)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def _same(row: Row | list[str]) -> tuple[str, str]:
    """What versions of a runtime have in common: name and first number, and what it calls."""
    return row[0].split(".")[0], row[1].split()[0]


def version_of(program: Path) -> str:
    """Return the version that a program says it has; all it says if that is none."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+(\.\d+)?", said)
    return found.group() if found else said.strip()


def main(*words: str) -> None:
    """Run the pairs that have all of the words; write a row after each."""
    for pair in (one for one in PAIRS if all(word in str(one).split() for word in words)):
        try:
            row = pair.row()
        except ClusterError as error:
            sys.stderr.write(f"hack/runtimes.py: {pair} stays as it was: {error}\n")
            continue
        PAGE.write_text(with_row(PAGE.read_text(), row))


if __name__ == "__main__":
    main(*sys.argv[1:])
