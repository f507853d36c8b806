"""How a share config divides a node. Pure.

In its own module, so that a node without a share config does not load config models.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from dra_driver.devices.device import Base
from dra_driver.devices.shares import Division


class ShareLayout(Struct, frozen=True, kw_only=True):
    """How a config divides a node.

    Attributes:
        divisions: the devices that are divided, and how.
        packed: whether all shares of one device are given out before those of the next, even where
            that is not needed for requests for several shares.
        refused: why a device cannot be divided as the config asks. It is not offered at all,
            because a claim for a share must not get the whole device.
        serving: the extended resource that an undivided device serves, if not the one of its kind.
        unserved: the extended resource that an undivided device does not serve, because shares of
            other devices do; claims can have it as a whole.
        remarks: for people, what the config names but the node lacks, and what has no effect.
    """

    divisions: Mapping[Base, Division] = field(default_factory=dict)
    packed: bool = False
    refused: Mapping[Base, str] = field(default_factory=dict)
    serving: Mapping[Base, str] = field(default_factory=dict)
    unserved: Mapping[Base, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
