"""A demo's requirements on GPUs, and whether the GPUs of a profile meet them.

In: the `needs` of an `expect.yaml`, and a machine profile of the simulator. Out: a `Fit`, which
says how the demo is adapted to the machine's cards, or the reason why it cannot run there.
Rule: the name of a MIG profile depends on the card's memory (1g.5gb or 1g.10gb), but NVML's number
of the profile is the same. A demo is written with the names of one card.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter
from testbed.commands import TestbedError

from dra_driver.errors import ConfigError
from dra_driver.host.words import count
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.profile import CARDS, Card, Gpu, Mig, MigProfile, Profile

_MIG_NAME = re.compile(r"\b\d+g\.\d+gb\b")


class UnfitError(TestbedError):
    """A machine's GPUs lack what a demo needs; the text says what that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a demo needs of a machine.

    Attributes:
        gpus: how many GPUs outside MIG mode it has at the same time.
        divided: of how many GPUs it has MIG devices at the same time.
        names_of: the card whose names of MIG profiles it is written with.
        product: what the product name of its GPUs matches, in lower case.
        compute_capability: the least that each GPU must have.
        time_slices: whether the time-slices of each GPU can be set.
        nics: how many network cards it has, each below another PCIe root with GPUs.
        made: profiles of the MIG devices that an admin has made before on each divided GPU.
        existing: the same, if the driver makes none itself.
        iommu: whether it gives a GPU to a virtual machine; the machine gets an IOMMU for it, and
            one of its GPUs is bound to vfio-pci.
        features: the feature gates that must be on in Kubernetes.
    """

    gpus: int = 0
    divided: int = 0
    names_of: str = ""
    product: str = ""
    compute_capability: tuple[int, int] = (0, 0)
    time_slices: bool = False
    nics: int = 0
    made: tuple[str, ...] = ()
    existing: tuple[str, ...] = ()
    iommu: bool = False
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a demo runs on a machine.

    Attributes:
        card: the product that is divided for it; empty when none is.
        names: that card's names of MIG profiles, by those that the demo is written with.
        divided: the minor numbers of GPUs of that card, as many as the demo needs divided.
        switched: those of them whose MIG mode an admin turns on for it.
        by_reset: whether that needs a reset.
    """

    card: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    divided: tuple[int, ...] = ()
    switched: tuple[int, ...] = ()
    by_reset: bool = False

    def adapted(self, text: str) -> str:
        """Return a text of the demo with the card's names of MIG profiles."""
        return _MIG_NAME.sub(lambda name: self.names.get(name[0], name[0]), text)


def machine(name: str) -> Profile:
    """Return a machine profile of the simulator, by its name or by the path of a file.

    Raises TestbedError if there is no such profile; the text lists those that are.
    """
    try:
        return profiles.load(name)
    except ConfigError as error:
        raise TestbedError(str(error)) from error


def with_iommu(name: str, folder: Path) -> str:
    """Write the profile of a machine whose last GPU is bound to vfio-pci; return the file's path.

    GPUs in MIG mode stay with the GPU driver.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, on = folder / "machine.yaml", profiles.load(name)
    whole = [gpu.pci for gpu in on.gpus if not gpu.mig_mode]
    iommu = {"drivers": {whole[-1]: "vfio-pci"}}
    file.write_text(profiles.dump(profiles.changed(on, {"iommu": iommu})))
    return str(file)


def parse_needs(entry: Mapping[str, Any]) -> Needs:
    """Read `needs` of an `expect.yaml`."""
    mig = {**entry.get("mig", {})}
    worked_out = {
        "divided": mig.pop("gpus", 0),
        "names_of": mig.pop("namesOf", ""),
        "compute_capability": _capability(str(entry.get("computeCapability", "0.0"))),
        "time_slices": entry.get("timeSlices", False),
    }
    return TypeAdapter(Needs).validate_python({**entry, **mig, **worked_out})


def fit(needs: Needs, text: str, on: Profile) -> Fit:
    """Say how a demo with these needs and this text runs on a machine.

    Raises UnfitError if it cannot.
    """
    gpus = [gpu for gpu in on.gpus if re.search(needs.product, on.card_of(gpu).name.lower())]
    if not gpus:
        raise UnfitError(f"it is for GPUs whose product matches {needs.product}; {_has(on)}")
    whole = [gpu for gpu in gpus if not gpu.mig_mode]
    if len(whole) < needs.gpus:
        divided = len(gpus) - len(whole)
        in_mode = f", {divided} of them in MIG mode" if divided else ""
        raise UnfitError(f"it needs {count(needs.gpus, 'GPU')}; {_has(on)}{in_mode}")
    if needs.iommu and on.nvswitch is not None:
        raise UnfitError(f"it needs GPUs that are not behind NVSwitches; {_has(on)}")
    if len({(gpu.bridges or [gpu.pci])[0][:7] for gpu in whole}) < needs.nics:
        raise UnfitError(f"it needs NICs below {needs.nics} PCIe roots with GPUs; {_has(on)}")
    # A claim may get any of them.
    for card in [on.card_of(gpu) for gpu in whole] if needs.gpus else []:
        if _capability(card.compute_capability) < needs.compute_capability:
            least = ".".join(map(str, needs.compute_capability))
            raise UnfitError(
                f"it needs compute capability {least}; {card.name} has {card.compute_capability}"
            )
        if needs.time_slices and not card.time_slicing:
            raise UnfitError(f"it sets a time-slice; {card.name} has none that can be set")
    return _divided(needs, text, on, gpus) if needs.divided else Fit()


def where(needs: Needs, text: str) -> list[str]:
    """Return the shipped profiles on which such a demo runs."""
    places = []
    for name in profiles.names():
        try:
            fit(needs, text, profiles.load(name))
        except UnfitError:
            continue
        places.append(name)
    return places


def _divided(needs: Needs, text: str, on: Profile, gpus: Sequence[Gpu]) -> Fit:
    """Choose the card that is divided: the one that needs the least preparation."""
    written = set(_MIG_NAME.findall(text))
    fits, reasons = [], []
    for name in dict.fromkeys(gpu.card for gpu in gpus):
        card, of_it = on.cards[name], [gpu for gpu in gpus if gpu.card == name]
        if card.mig is None:
            continue
        try:
            fits.append(_on_card(needs, written, card, card.mig, of_it))
        except UnfitError as reason:
            reasons.append(str(reason))
    if not fits:
        raise UnfitError("; ".join(reasons) or f"it needs GPUs with MIG; {_has(on)}")
    return min(fits, key=_trouble)


def _trouble(fitted: Fit) -> tuple[bool, int, bool]:
    """Return a sort key for the amount of preparation that a demo needs."""
    renamed = any(name != other for name, other in fitted.names.items())
    return fitted.by_reset, len(fitted.switched), renamed


def _on_card(needs: Needs, written: set[str], card: Card, mig: Mig, gpus: Sequence[Gpu]) -> Fit:
    if len(gpus) < needs.divided:
        raise UnfitError(
            f"it needs {count(needs.divided, 'GPU')} of one product with MIG, and of {card.name}"
            f" there {'is' if len(gpus) == 1 else 'are'} {len(gpus)}"
        )
    numbers = {profile.name: profile.index for profile in _mig_profiles(needs.names_of)}
    here = {profile.index: profile.name for profile in mig.profiles}
    if lacking := sorted(name for name in written if numbers[name] not in here):
        raise UnfitError(
            f"it needs MIG devices such as {', '.join(lacking)} of {needs.names_of}, of which "
            f"{card.name} has no equivalent; it has {', '.join(here.values())}"
        )
    divided = sorted(gpus, key=lambda gpu: not gpu.mig_mode)[: needs.divided]
    switched = tuple(gpu.minor for gpu in divided if not gpu.mig_mode)
    return Fit(
        card=card.name,
        names={name: here[numbers[name]] for name in written},
        divided=tuple(gpu.minor for gpu in divided),
        switched=switched,
        by_reset=mig.reset_to_switch and bool(switched),
    )


def _mig_profiles(name: str) -> Sequence[MigProfile]:
    """Return the MIG profiles of a shipped card."""
    card = Card.model_validate(yaml.safe_load((CARDS / f"{name}.yaml").read_text()))
    return card.mig.profiles if card.mig else ()


def _has(on: Profile) -> str:
    products = ", ".join(dict.fromkeys(on.card_of(gpu).name for gpu in on.gpus))
    return f"{on.name} has {count(len(on.gpus), 'GPU')}: {products}"


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
