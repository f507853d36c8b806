"""Nobody below a limit is ever ended, whatever tenants do; who stays above it always is."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from worlds.tenants import CONTEXT, Tenants

LIMIT = 1000
SHARES = {"s1": ("a",), "s2": ("b", "c"), "s3": ("c",), "part": ("d",)}
PODS = ("a", "b", "c", "d", "m", "stranger", "")
CONTAINERS = ("first-ctr", "second-ctr", "")
"""The last is a group of the pod that is none of its containers."""

pids = st.integers(min_value=1, max_value=6)
amounts = st.none() | st.sampled_from([0, 10, LIMIT, LIMIT + CONTEXT, 2 * LIMIT, 5 * LIMIT])


class OverLimits(RuleBasedStateMachine):
    """Tenants that take, give back, fork, hide, end and are given each other's PIDs."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants = Tenants()
        for name, pods in SHARES.items():
            by = "part" if name == "part" else "share"
            self.tenants.claim(name, LIMIT, *pods, by=by)
        self.tenants.claim("mps", LIMIT, "m", by="mps")
        self.tenants.before_end = self.check
        self.before: set[str] = set()
        self.now: set[str] = set()

    @rule(pid=pids, pod=st.sampled_from(PODS), container=st.sampled_from(CONTAINERS), mib=amounts)
    def run(self, pid: int, pod: str, container: str, mib: int | None) -> None:
        """A process begins, or another one is given its PID."""
        # One that is started again has another id.
        self.tenants.run(pid, pod, mib, container and f"{len(self.tenants.ended)}-{container}")

    @rule(pid=pids, mib=amounts)
    def take(self, pid: int, mib: int | None) -> None:
        if pid in self.tenants.jobs:
            self.tenants.jobs[pid].mib = mib

    @rule(pid=pids)
    def leave(self, pid: int) -> None:
        self.tenants.jobs.pop(pid, None)

    @rule(is_silent=st.booleans(), seconds=st.sampled_from([0.0, 0.0, 3.0]))
    def trouble(self, is_silent: bool, seconds: float) -> None:
        self.tenants.is_silent, self.tenants.look_takes = is_silent, seconds

    @rule(times=st.integers(min_value=1, max_value=3))
    def look(self, times: int) -> None:
        for _ in range(times):
            self.before, self.now = self.now, self.guilty()
            self.tenants.look()

    @rule()
    def settle(self) -> None:
        """Who stays above the limit is ended in the end."""
        self.trouble(is_silent=False, seconds=0.0)
        self.look(1 + 2 * len({job.container for job in self.tenants.jobs.values()}))
        assert not self.guilty()

    def guilty(self) -> set[str]:
        """Containers of parties above their limits, of which one may be ended."""
        if self.tenants.is_silent:
            return set()
        return {
            job.container
            for job in self.tenants.jobs.values()
            if job.container.endswith("r") and self.above(job.pod, job.container)
        }

    def above(self, pod: str, container: str) -> bool:
        jobs = self.tenants.jobs.values()
        if pod == "m":
            has = sum(job.mib or 0 for job in jobs if job.container == container)
            return has > LIMIT + CONTEXT
        claims = {name for name, pods in SHARES.items() if pod in pods}
        with_it = {other for name in claims for other in SHARES[name]}
        claims = {name for name, pods in SHARES.items() if with_it & {*pods}}
        has = sum(job.mib or 0 for job in jobs if job.pod in with_it)
        # b and c are one party only while both are on the GPU; alone b has one claim's limit.
        here = {job.pod for job in jobs if job.pod in with_it}
        claims = {name for name in claims if here & {*SHARES[name]}}
        return bool(claims) and has > len(claims) * LIMIT + CONTEXT

    def check(self, container: str) -> None:
        assert container in self.before & self.now, (container, self.before, self.now)


TestOverLimits = OverLimits.TestCase
