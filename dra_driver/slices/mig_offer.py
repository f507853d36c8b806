"""What a node offers of MIG: every device that could be made, those that exist, or none.

In: the settings `--mig` and `--mig-profiles`, NVIDIA's feature gate DynamicMIG, and the labels of
the Node. Out: a `MigOffer`, with the reason for people. Rule: only one may switch MIG modes and
make devices on a node, and where mig-manager of NVIDIA's GPU Operator does, its label is there.
Claims that have a device are none of this: it is taken back when they end. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.devices.model import MigProfile

MIG_MANAGER_LABEL = "nvidia.com/mig.config"
"""The label of a Node by which mig-manager is told how to divide its GPUs."""


class MigSource(StrEnum):
    """Where the MIG devices of a node come from."""

    ON_DEMAND = "on-demand"
    """This driver makes them for claims; those that others made are offered too."""

    EXISTING = "existing"
    """Others make them."""

    OFF = "off"
    """There are none for claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigOffer:
    """What is offered, and why."""

    source: MigSource = MigSource.ON_DEMAND
    why: str = "no setting says otherwise"
    profiles: frozenset[str] = frozenset()
    """Names of the profiles that are made on demand, such as `1g.10gb`; empty for all."""

    def includes(self, profile: MigProfile) -> bool:
        """Tell whether devices of a profile are made on demand."""
        return not self.profiles or profile.name in self.profiles

    def why_none_made(self) -> str | None:
        """Return why no devices are made on demand, whatever the card can do; None if they are."""
        match self.source:
            case MigSource.ON_DEMAND:
                return None
            case MigSource.EXISTING | MigSource.OFF:
                return self.why


ALL = MigOffer()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSettings:
    """What was set. `source` is None for auto, `gate` None for a gate that is not set."""

    source: MigSource | None = None
    gate: bool | None = None
    profiles: frozenset[str] = frozenset()

    @classmethod
    def of(cls, mig: str, profiles: str, *, gate: bool | None = None) -> "MigSettings":
        """Return what `--mig`, `--mig-profiles` and the gate, if it is given, say."""
        return cls(
            source=None if mig == "auto" else MigSource(mig),
            gate=gate,
            profiles=frozenset(filter(None, profiles.split(","))),
        )

    def offer_of_any_node(self) -> MigOffer:
        """Return what is offered on a node of which no labels are known."""
        if not self.heeds_labels:
            return self.offer({})
        return self._offer(MigSource.ON_DEMAND, f"unless the Node has label {MIG_MANAGER_LABEL}")

    @property
    def heeds_labels(self) -> bool:
        """Whether the Node's labels decide."""
        return self.source is None and self.gate is None

    def offer(self, labels: Mapping[str, str]) -> MigOffer:
        """Return what is offered on a node with these labels."""
        if self.source is not None:
            return self._offer(self.source, f"--mig is {self.source}")
        if self.gate is not None:
            source = MigSource.ON_DEMAND if self.gate else MigSource.EXISTING
            return self._offer(source, f"feature gate DynamicMIG is {str(self.gate).lower()}")
        label = labels.get(MIG_MANAGER_LABEL)
        if label is not None:
            why = f"mig-manager divides the GPUs of this node: label {MIG_MANAGER_LABEL}={label}"
            return self._offer(MigSource.EXISTING, why)
        return self._offer(MigSource.ON_DEMAND, f"the node has no label {MIG_MANAGER_LABEL}")

    def _offer(self, source: MigSource, why: str) -> MigOffer:
        return MigOffer(source=source, why=why, profiles=self.profiles)
