"""Decides which MIG devices a node offers. Pure.

In: the settings `--mig` and `--mig-profiles`, NVIDIA's feature gate DynamicMIG, the labels of the
Node, and the version of Kubernetes. Out: a `MigOffer`, with the reason for people. Rules: the admin
decides about a GPU's MIG mode unless a setting says otherwise. Only one program may switch modes
and make devices on a node; if that is mig-manager of NVIDIA's GPU Operator, the Node has its label.
Devices made on demand need counters. Before Kubernetes 1.37, their cost to the scheduler grows with
the square of the number of nodes that publish any (kubernetes/kubernetes#138917).
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from dra_driver.devices.model import Gpu, MigProfile

MIG_MANAGER_LABEL = "nvidia.com/mig.config"
"""The label of a Node that tells mig-manager how to divide its GPUs."""

KubernetesVersion = tuple[int, int]
"""Major and minor version, such as (1, 37)."""

CHEAP_COUNTERS: KubernetesVersion = (1, 37)
"""The first version whose scheduler reads a node's counters only when it considers that node."""

COST_BEFORE_1_37 = (
    "before 1.37 the scheduler looks at the counters of every node for each node: 1.36 placed 1.1"
    " pods a second instead of 44 on 50 nodes with 8 H100 each"
)
"""What counters cost an older scheduler, measured with whole-GPU pods by hack/bench/fleet."""


def has_cheap_counters(kubernetes: KubernetesVersion | None) -> bool:
    """Tell whether counters cost the scheduler little; False if the version is unknown."""
    return kubernetes is not None and kubernetes >= CHEAP_COUNTERS


class MigSource(StrEnum):
    """Where the MIG devices of a node come from."""

    AUTO = "auto"
    """This driver makes them on GPUs that others put in MIG mode, and never switches modes."""

    ON_DEMAND = "on-demand"
    """This driver makes them on every GPU and switches modes; others' devices are offered too."""

    EXISTING = "existing"
    """Only others make them."""

    OFF = "off"
    """MIG devices are not offered."""


class MigOffer(Struct, frozen=True, kw_only=True):
    """Which MIG devices are offered, and why.

    Attributes:
        why: what decided this, for people.
        profiles: names of the profiles that are made on demand, such as `1g.10gb`; empty for all.
        way_out: what else can be done if a GPU in MIG mode has no MIG device, for people.
    """

    source: MigSource = MigSource.ON_DEMAND
    why: str = "no setting says otherwise"
    profiles: frozenset[str] = frozenset()
    way_out: str | None = None

    @property
    def switches_modes(self) -> bool:
        """Whether this driver switches MIG modes as claims need it."""
        return self.source is MigSource.ON_DEMAND

    def includes(self, profile: MigProfile) -> bool:
        """Tell whether devices of a profile are made on demand."""
        return not self.profiles or profile.name in self.profiles

    def why_none_made(self) -> str | None:
        """Return why no devices are made on demand on any card; None if they are."""
        match self.source:
            case MigSource.AUTO | MigSource.ON_DEMAND:
                return None
            case MigSource.EXISTING | MigSource.OFF:
                return self.why

    def divides(self, gpu: Gpu) -> bool:
        """Tell whether devices are made on demand on a GPU, provided that it can be divided."""
        match self.source:
            case MigSource.ON_DEMAND:
                return True
            case MigSource.AUTO:
                return gpu.was_put_in_mig_mode
            case MigSource.EXISTING | MigSource.OFF:
                return False


ALL = MigOffer()


class MigSettings(Struct, frozen=True, kw_only=True):
    """The settings about MIG; `why` names the decisive one. With AUTO, the node decides."""

    source: MigSource
    why: str
    profiles: frozenset[str]

    @classmethod
    def of(cls, mig: str, profiles: str, *, gate: bool | None = None) -> "MigSettings":
        """Return the meaning of `--mig`, `--mig-profiles` and the feature gate, if it is set."""
        source, why = MigSource(mig), f"--mig is {mig}"
        if source is MigSource.AUTO and gate is not None:
            source = MigSource.ON_DEMAND if gate else MigSource.EXISTING
            why = f"feature gate DynamicMIG is {str(gate).lower()}"
        return cls(source=source, why=why, profiles=frozenset(filter(None, profiles.split(","))))

    @property
    def heeds_node(self) -> bool:
        """Whether the Node's labels decide, or without such a label the version of Kubernetes."""
        return self.source is MigSource.AUTO

    @property
    def switches_modes(self) -> bool:
        """Whether this driver may switch MIG modes for claims, on any node."""
        return self.source is MigSource.ON_DEMAND

    def offer(self, labels: Mapping[str, str], kubernetes: KubernetesVersion | None) -> MigOffer:
        """Return what is offered on a node with these labels."""
        if not self.heeds_node:
            return self._offer(self.source, self.why)
        label = labels.get(MIG_MANAGER_LABEL)
        if label is not None:
            why = f"mig-manager divides the GPUs of this node: label {MIG_MANAGER_LABEL}={label}"
            return self._offer(MigSource.EXISTING, why)
        if has_cheap_counters(kubernetes):
            return self._offer(MigSource.AUTO, f"the node has no label {MIG_MANAGER_LABEL}")
        why = (
            f"--mig auto makes none on {named(kubernetes)}, where that would slow the scheduler"
            " down; from Kubernetes 1.37 on it does"
        )
        return self._offer(MigSource.EXISTING, why, "or set --mig on-demand")

    def _offer(self, source: MigSource, why: str, way_out: str | None = None) -> MigOffer:
        return MigOffer(source=source, why=why, profiles=self.profiles, way_out=way_out)


def named(kubernetes: KubernetesVersion | None) -> str:
    """Return a version of Kubernetes for people."""
    if kubernetes is None:
        return "a Kubernetes of unknown version"
    major, minor = kubernetes
    return f"Kubernetes {major}.{minor}"
