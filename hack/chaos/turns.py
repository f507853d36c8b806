"""What a hostile tenant does in a soak, computed only from its seed.

In a turn the tenant has a pod with GPUs, attacks from inside it, and meanwhile troubles the API
server; then it deletes the pod. All of this is within its rights: root in its container, and the
objects of its namespace. Every attack comes once before any comes again. Another pod of the tenant
floods the ports of driver and supervisor all the time.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from chaos.odd_claims import ACTS

BODIES = ("share", "claim")
"""How it comes to an MPS daemon: by a share, in a domain with others, or by a claim of its own."""

FLOODS = ("crowd", "flood", "streams")
"""Attacks on the ports of driver and supervisor, all three at once."""

INSIDE = ("clutter", "garbage", "mute", "places", "links", "fill", "order", "forge", "kill")
"""Attacks on its daemon, and on what its container shares with it; see testbed/attacks.py."""

OUTSIDE = ("daemons-kill", "greed")
"""Acts from outside: all of its daemons and servers are killed, or a pod of it is ended for more
memory than its share."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn; attacks come one after another, and acts beside them."""

    number: int
    body: str
    attacks: tuple[str, ...]
    acts: tuple[str, ...]
    is_abrupt: bool
    """Whether its pods are deleted without a grace period."""

    seed: int
    """The seed of random choices within the turn."""

    def __str__(self) -> str:
        end = "; ends at once" if self.is_abrupt else ""
        said = f"{', '.join(self.attacks)}; claims: {', '.join(self.acts)}{end}"
        return f"turn {self.number} by a {self.body}: {said}"


def turns(seed: int) -> Iterator[Turn]:
    """Yield the turns of a soak, without end."""
    chance = random.Random(seed)  # noqa: S311  # attacks, not secrets
    inside, acts = _shuffled(chance, INSIDE), _shuffled(chance, (*ACTS, *OUTSIDE))
    for number in itertools.count(1):
        yield Turn(
            number,
            BODIES[number % 2],
            (next(inside), next(inside)),
            tuple(next(acts) for _ in range(3)),
            chance.random() < 0.5,
            chance.randrange(2**32),
        )


def _shuffled(chance: random.Random, names: tuple[str, ...]) -> Iterator[str]:
    """Yield all names, and then all again in another order, without end."""
    while True:
        yield from chance.sample(names, len(names))
