"""The bridge of a cluster, in a network of its own."""

import os
import subprocess
import sys

import pytest

BRIDGE = """
import sys
from pathlib import Path
from types import SimpleNamespace
sys.path[:0] = sys.argv[1:]
from cluster.network import create_bridge
create_bridge(SimpleNamespace(bridge="dra-test", node_ip="10.213.3.1"))
folder = Path("/sys/class/net/dra-test")
create_bridge(SimpleNamespace(bridge="dra-test", node_ip="10.213.3.1"))
print((folder / "addr_assign_type").read_text())
"""
SET = 3
"""NET_ADDR_SET of linux/netdevice.h: then a bridge does not take the address of a port."""


def test_the_node_keeps_its_address_on_the_link_whichever_pods_come_and_go() -> None:
    if os.geteuid() != 0:
        pytest.skip("this needs root")
    words = 'mount -t sysfs sysfs /sys && exec "$@"'
    isolated = ("unshare", "--net", "--mount", "sh", "-c", words, "-")
    said = subprocess.run(
        [*isolated, sys.executable, "-c", BRIDGE, *sys.path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(said.stdout) == SET
