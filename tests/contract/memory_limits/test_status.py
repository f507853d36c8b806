"""`dra-driver status` of claims with several shares of a device, beside a driver that made them."""

from functools import partial

from dra_driver.admin.status.command import look, table
from worlds.limited_node import LimitedNode, share


def rows(node: LimitedNode) -> list[list[str]]:
    """Device, settings and state of each line of a claim."""
    shown = table(look(node.driver.plugin, "boot-1"))
    lines = [line.split("  ") for line in shown.splitlines() if line.startswith("default/")]
    return [[cell.strip() for cell in line if cell] for line in lines]


def test_the_shares_that_a_claim_has_of_a_device_are_one_line_with_their_sum(
    node: LimitedNode,
) -> None:
    node.divide(0, combines=True)
    named = partial(share, kind="mps-share")
    (pod, _), (other, _) = node.pod(), node.pod()
    large = node.claim_of(pod, *map(named, (7, 3, 4, 2, 0, 1, 6, 5)), name="large")
    small = node.claim_of(other, named(9), named(8), name="small")
    node.driver.prepare(large)
    node.driver.prepare(small)
    found = rows(node)
    assert [row[2] for row in found] == ["gpu-0", "gpu-0"]
    for row, count in zip(found, (8, 2), strict=True):
        assert row[4].startswith(f"{count} of 10 shares")
        assert f"{count * node.share_mib} MiB" in row[4]
