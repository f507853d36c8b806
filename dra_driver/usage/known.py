"""What is known of who may use GPUs: records of claims, their pods, names of containers, daemons.

In: the driver's directory, the roots below which the kubelet notes containers, and the API server's
word of later pods of claims, where there is one to be asked (usage/reserved.py). Out: `Known`.
Nothing is changed, and no damaged record stands in the way of the others.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.state.records import stored_records
from dra_driver.errors import StateError
from dra_driver.mps.requests import DomainRequests
from dra_driver.usage.containers import FOLDER, container_names
from dra_driver.usage.model import Daemon, Known
from dra_driver.usage.reserved import ReservedPods


def known_below(
    directory: Path,
    roots: Sequence[Path],
    records: Callable[[], Iterable[ClaimRecord]] | None = None,
    reserved: ReservedPods | None = None,
) -> Known:
    """Return what is known.

    Args:
        directory: of the driver's own files.
        roots: where the host's root may be mounted; the first with the kubelet's notes is taken.
        records: returns the records of claims; without it they are read below the directory.
        reserved: knows the later pods of claims, where an API server can be asked.

    Raises:
        StateError: the records cannot be read.
    """
    found = tuple(stored_records(directory).records if records is None else records())
    requests = DomainRequests(directory / "mps", lambda: 0.0)
    daemons = []
    for domain in requests.list():
        try:
            status = requests.status(domain)
        except StateError:
            continue  # its servers count as processes of no pod
        if status is not None and status.daemon is not None:
            at = status.daemon
            daemons.append(Daemon(pid=at.pid, start_ticks=at.start_ticks, domain=str(domain)))
    return Known(
        records=found,
        reserved={} if reserved is None else reserved.of(found),
        names=container_names(*(root / FOLDER for root in roots)),
        daemons=tuple(daemons),
    )
