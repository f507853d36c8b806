"""Ports, a subnet and a bridge for one cluster.

Components listen on 127.0.0.1; the kubelet on the bridge's address, which the API server needs as
the node's InternalIP and to which no other machine has a route. Pods get addresses on the bridge
and no way out: images are imported, so nothing needs one, and the machine's forwarding and firewall
rules stay as they are. The bridge is made by the ioctls
of bridge(4) and netdevice(7), which needs no program.
"""

import fcntl
import ipaddress
import random
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ClusterError
from cluster.state import Cluster, Ports

SIOCSIFADDR = 0x8916
SIOCSIFNETMASK = 0x891C
SIOCSIFFLAGS = 0x8914
SIOCSIFHWADDR = 0x8924
SIOCGIFHWADDR = 0x8927
SIOCBRADDBR = 0x89A0
SIOCBRDELBR = 0x89A1
IFF_UP = 0x1
# Below the range from which the kernel takes ports for outgoing connections (32768 and up):
# there, a port could be gone when a component restarts.
PORT_RANGE = range(20000, 30000)
NET_CLASS = Path("/sys/class/net")


def free_ports(taken: Iterable[int]) -> Ports:
    """Ports that nobody listens on and no other cluster has.

    Raises ClusterError if the whole range is in use.
    """
    used = set(taken)
    ports: list[int] = []
    # Different clusters start at different places, so that a port that one has just freed is not
    # given to the next.
    start = random.SystemRandom().randrange(len(PORT_RANGE))
    for offset in range(len(PORT_RANGE)):
        port = PORT_RANGE[(start + offset) % len(PORT_RANGE)]
        if port not in used and _is_free(port):
            ports.append(port)
        if len(ports) == len(Ports.__dataclass_fields__):
            return Ports(**dict(zip(Ports.__dataclass_fields__, ports, strict=True)))
    raise ClusterError("no free ports between 20000 and 29999: stop something that listens there")


def _is_free(port: int) -> bool:
    # Bound on every address: a listener on any one of them makes this fail.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - never listened on
        except OSError:
            return False
    return True


def free_subnet(taken: Iterable[int]) -> int:
    """The third byte of a 10.213.x.0/24 that no route of this machine overlaps.

    Raises ClusterError if all are taken.
    """
    used = set(taken)
    routes = list(_routes(Path("/proc/net/route").read_text()))
    for number in range(256):
        candidate = ipaddress.IPv4Network(f"10.213.{number}.0/24")
        if number not in used and not any(candidate.overlaps(route) for route in routes):
            return number
    raise ClusterError("every subnet in 10.213.0.0/16 is routed elsewhere on this machine")


def _routes(table: str) -> Iterator[ipaddress.IPv4Network]:
    """The destinations in /proc/net/route, without the default route."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (
            ipaddress.IPv4Address(struct.pack("<I", int(fields[column], 16))) for column in (1, 7)
        )
        if int(mask):
            yield ipaddress.IPv4Network(f"{destination}/{mask}", strict=False)


def create_bridge(cluster: Cluster) -> None:
    """Make the cluster's bridge, give it the node's address and set it up; idempotent."""
    name = cluster.bridge
    with _control() as control:
        if not (NET_CLASS / name).exists():
            fcntl.ioctl(control, SIOCBRADDBR, name.encode() + b"\0")
        # A bridge without a fixed hardware address takes the lowest one of its ports: it could
        # change with each pod, and packets of other pods to the node would be lost until they ask
        # for it again.
        address = fcntl.ioctl(control, SIOCGIFHWADDR, struct.pack("16s24x", name.encode()))
        fcntl.ioctl(control, SIOCSIFHWADDR, address)
        fcntl.ioctl(control, SIOCSIFADDR, _address_request(name, cluster.node_ip))
        fcntl.ioctl(control, SIOCSIFNETMASK, _address_request(name, "255.255.255.0"))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", name.encode(), IFF_UP))


def delete_bridge(name: str) -> None:
    """Take the bridge down and remove it, if it is there."""
    if not (NET_CLASS / name).exists():
        return
    with _control() as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", name.encode(), 0))
        fcntl.ioctl(control, SIOCBRDELBR, name.encode() + b"\0")


def bridge_ports(name: str) -> set[str]:
    """The interfaces attached to a bridge: the host's ends of pods' veth pairs."""
    folder = NET_CLASS / name / "brif"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@contextmanager
def _control() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        yield control


def _address_request(name: str, address: str) -> bytes:
    # struct ifreq: 16 bytes of name, then a sockaddr_in (family, port, address).
    return struct.pack("16sHH4s16x", name.encode(), socket.AF_INET, 0, socket.inet_aton(address))
