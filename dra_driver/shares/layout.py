"""What a share config makes of a node. Pure."""

from collections.abc import Mapping

from msgspec import Struct, field

from dra_driver.devices.device import Base
from dra_driver.devices.shares import Division


class ShareLayout(Struct, frozen=True, kw_only=True):
    """What a config makes of a node.

    `refused` is why a device cannot be divided as the config asks, `serving` which resource
    undivided devices with another name serve, and `missing` what the config names but the node does
    not have, for people.
    """

    divisions: Mapping[Base, Division] = field(default_factory=dict)
    refused: Mapping[Base, str] = field(default_factory=dict)
    serving: Mapping[Base, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
