"""Whatever processes ask for, a limited pod never has more than its limit, in sum."""

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.devices.model import GpuUuid
from dra_driver.sharing.pod_groups import PodGroups
from dra_driver.sharing.pod_limits import PodLimits
from dra_driver.simulator.layout import Fact
from worlds.groups import GIB, limited
from worlds.session import session_on

LIMITS = st.lists(st.integers(1, 40), min_size=1, max_size=3)
ASKED = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 30), st.booleans()), max_size=12
)


@settings(max_examples=25)
@given(limits=LIMITS, asked=ASKED)
def test_no_pod_ever_has_more_than_its_limit(
    limits: list[int], asked: list[tuple[int, int, int, bool]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine, groups = limited(Path(folder), profile="t4x4")
        machine.set_fact(uuid := machine.find("0").uuid, Fact.MEMORY_TOTAL, 200 * GIB)
        session = session_on(machine)
        session.look()
        pods = PodLimits(gpus=session, groups=PodGroups(groups.root))
        made = [groups.pod(3) for _ in limits]
        for (pod, _), size in zip(made, limits, strict=True):
            pods.limit(pod, GpuUuid(uuid), size * GIB)
        has: Counter[int] = Counter()
        for number, container, size, ends in asked:
            which = number % len(made)
            group = sorted(made[which][1].glob("*.scope"))[container]
            fits = has[which] + size <= limits[which]
            assert machine.take_memory(uuid, size * GIB, pid=1 + which, group=group) is fits
            has[which] += size if fits else 0
            if ends:
                machine.release_memory(uuid, pid=1 + which)
                has[which] = 0
        session.close()
