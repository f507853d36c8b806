"""Cloud providers' GPU machine types as simulated machines.

In: a type's name, such as `p5.48xlarge`. Out: a profile with as many GPUs of its card as the cloud
documents (`instance_types.yaml` has the numbers and their sources). What a cloud does not document
is taken from the shipped profile with the most GPUs of that card: PCI addresses, NUMA nodes,
NVLinks, the driver's version. These differ on a real node of the type.
"""

import difflib
import functools
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import pydantic
import yaml

from dra_driver.errors import ConfigError
from dra_driver.simulator.profile import CARDS, Gpu, Profile, load, names

_FILE = Path(__file__).with_name("instance_types.yaml")

_MOST_NEAR = 3


class Family(pydantic.BaseModel):
    """Machine types of a cloud with the same GPU: the number of GPUs by the type's name.

    `gpu` is the product's name, `card` the file that describes it, or None. `source` is the cloud's
    page about the family.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    cloud: str
    source: str
    gpu: str
    card: str | None = None
    types: dict[str, pydantic.PositiveInt]


@functools.cache
def families() -> tuple[Family, ...]:
    """Return the known families of machine types, in the order of the file."""
    return tuple(Family.model_validate(family) for family in yaml.safe_load(_FILE.read_text()))


def profile_of(instance_type: str) -> Profile:
    """Return a machine of this type.

    Raises ConfigError, which lists the known types, if this type or its card is unknown.
    """
    for family in families():
        if instance_type in family.types:
            count = family.types[instance_type]
            if family.card is None:
                known = ", ".join(sorted(file.stem for file in CARDS.glob("*.yaml")))
                raise ConfigError(
                    f"{family.cloud}'s {instance_type} has {count} {family.gpu}, a card that this "
                    f"version does not know: known are {known}; describe it in a profile of your "
                    "own (--profile FILE)"
                )
            return _machine(instance_type, family.card, count)
    raise ConfigError(_unknown(instance_type))


def _unknown(name: str) -> str:
    """List the known types, those with a similar name first."""
    served = [family for family in families() if family.card is not None]
    known = {type_.casefold(): type_ for family in served for type_ in family.types}
    near = difflib.get_close_matches(name.casefold(), known, n=_MOST_NEAR)
    hint = f"; did you mean {' or '.join(known[like] for like in near)}?" if near else "."
    by_cloud = "; ".join(
        f"{cloud}: {', '.join(itertools.chain.from_iterable(family.types for family in of_cloud))}"
        for cloud, of_cloud in itertools.groupby(served, key=lambda family: family.cloud)
    )
    return (
        f"no instance type {name!r} is known{hint} Known are {by_cloud}; for any other "
        "machine there is --profile"
    )


def _machine(instance_type: str, card: str, count: int) -> Profile:
    """Return a machine with `count` GPUs of a card, based on the shipped one that has the most."""
    base = max(_shipped(), key=lambda profile: sum(gpu.card == card for gpu in profile.gpus))
    gpus = _gpus([gpu for gpu in base.gpus if gpu.card == card], count)
    return Profile(
        name=instance_type.lower().replace("_", "-"),
        description=f"{count} x {base.cards[card].name}, as {instance_type} has them",
        driver_version=base.driver_version,
        cuda_version=base.cuda_version,
        cpus_per_numa_node=base.cpus_per_numa_node,
        nvswitch=base.nvswitch if count > 1 else None,
        cards={card: base.cards[card]},
        gpus=gpus,
    )


@functools.cache
def _shipped() -> tuple[Profile, ...]:
    return tuple(load(name) for name in names())


def _gpus(given: Sequence[Gpu], count: int) -> list[Gpu]:
    """Return `count` GPUs: the first of those given, then all of them again in other domains."""
    gpus = [
        gpu.model_copy(
            update={
                "pci": _in_domain(gpu.pci, domain),
                "minor": domain * len(given) + index,
                "bridges": [_in_domain(bridge, domain) for bridge in gpu.bridges],
                "nvlinks": [_in_domain(nvlink, domain) for nvlink in gpu.nvlinks],
                "module_id": None if domain else gpu.module_id,
                "processes": [],
            }
        )
        for domain in range(-(-count // len(given)))
        for index, gpu in enumerate(given)
    ][:count]
    return [gpu.model_copy(update={"nvlinks": _within(gpu.nvlinks, gpus)}) for gpu in gpus]


def _in_domain(address: str, domain: int) -> str:
    return f"{domain:04x}:{address.partition(':')[2]}"


def _within(links: Iterable[str], gpus: Iterable[Gpu]) -> list[str]:
    """Return the NVLinks that lead to existing GPUs."""
    there = {gpu.pci for gpu in gpus}
    return [link for link in links if link in there]
