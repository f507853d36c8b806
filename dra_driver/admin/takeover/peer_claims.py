"""Lists the claims of NVIDIA's DRA driver that this driver has not taken over.

In: its checkpoint, which lists no claims with records (admin/takeover/take_over.py), and its CDI
specs. Out: its claims, for people. Nothing is changed, and no error is raised: a damaged file is
reported as such. A claim has ended when its CDI spec is gone: the kubelet has unprepared it.
"""

from pathlib import Path

from msgspec import Struct

from dra_driver.admin.takeover.checkpoint_file import FILE
from dra_driver.admin.takeover.nvidia_checkpoint import (
    PeerClaim,
    UnreadClaim,
    parse_checkpoint,
    read_checkpoint,
)
from dra_driver.cdi.store import SpecStore
from dra_driver.errors import DriverError


class PeerClaims(Struct, frozen=True, kw_only=True):
    """What was found: `claims` can be taken over, `unread` are not understood.

    `file` is the checkpoint, None if there is none; `problem` is why it cannot be read, and
    `is_of_this_boot` tells whether its content may still apply.
    """

    file: Path | None = None
    problem: str | None = None
    claims: tuple[PeerClaim, ...] = ()
    unread: tuple[UnreadClaim, ...] = ()
    is_of_this_boot: bool = True

    def in_use(self, specs: SpecStore) -> list[str]:
        """Return the claims that have not ended, for people; of a damaged file, all with a spec."""
        if self.file is None or not self.is_of_this_boot:
            return []
        there = specs.peers()
        names = [named(claim) for claim in self.claims if claim.uid in there]
        names += [named(claim) for claim in self.unread if claim.uid in there]
        if self.problem is not None:
            names = [f"claim UID {uid}" for uid in sorted(there)]
        return [f"{name} of NVIDIA's DRA driver" for name in names]


def look(directory: Path, boot_id: str | None) -> PeerClaims:
    """Read the checkpoint in a directory; without a boot id, it counts as of this boot."""
    path = directory / FILE
    try:
        data = read_checkpoint(path)
        if data is None:
            return PeerClaims()
        checkpoint = parse_checkpoint(data)
    except DriverError as error:
        return PeerClaims(file=path, problem=str(error))
    return PeerClaims(
        file=path,
        claims=checkpoint.claims,
        unread=checkpoint.unread,
        is_of_this_boot=boot_id is None or checkpoint.boot_id in (None, boot_id),
    )


def named(claim: PeerClaim | UnreadClaim) -> str:
    """Return a claim's UID with the names of its pods, by which people know it."""
    pods = f" (pod {', '.join(claim.pods)})" if claim.pods else ""
    return f"claim UID {claim.uid[:160]}{pods}"
