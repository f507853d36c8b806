"""What a tenant's pod does to driver and supervisor: `flood.py ADDRESS:HTTP-PORT:HEALTH-PORT …`.

200 idle connections to each port, and 4000 health checks under way; what is lost is begun again.
A port of 0 is left out. Runs in the driver's image, which has gRPC, until it is ended.
"""

import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, islice

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

IDLE, CHECKS, CHANNELS = 200, 4000, 8


def main(words: list[str]) -> None:
    """Flood for ever, and say each second what is held."""
    targets = [word.split(":") for word in words]
    idle = [Idle(host, int(port)) for host, *ports in targets for port in ports if port != "0"]
    checks = Checks([f"{host}:{port}" for host, _, port in targets if port != "0"])
    for one in (*idle, checks):
        threading.Thread(target=one.flood, daemon=True).start()
    while True:
        time.sleep(1)
        sys.stdout.write(
            f"flooding: {[len(one.held) for one in idle]} idle after {[one.made for one in idle]},"
            f" {len(checks.calls)} checks after {checks.made}\n"
        )
        sys.stdout.flush()


class Idle:
    """Connections to one port on which nothing is said."""

    def __init__(self, host: str, port: int) -> None:
        self._port = (host, port)
        self.held: list[socket.socket] = []
        self.made = 0

    def flood(self) -> None:
        """Hold as many as are wanted, for ever."""
        while True:
            self.held = [*filter(is_held, self.held)]
            for _ in range(IDLE - len(self.held)):
                with suppress(OSError):
                    self.held.append(socket.create_connection(self._port, timeout=1))
                    self.made += 1
            time.sleep(0.2)


class Checks:
    """Health checks that are under way, over a few channels to each address."""

    def __init__(self, addresses: Sequence[str]) -> None:
        own = [("grpc.use_local_subchannel_pool", 1)]
        self._stubs = [
            health_pb2_grpc.HealthStub(grpc.insecure_channel(address, own))
            for address in addresses
            for _ in range(CHANNELS)
        ]
        self.calls: list[grpc.Future] = []
        self.made = 0

    def flood(self) -> None:
        """Have as many under way as are wanted, for ever."""
        ask = health_pb2.HealthCheckRequest(service="liveness")
        while True:
            self.calls = [call for call in self.calls if not call.done()]
            for stub in islice(cycle(self._stubs), CHECKS - len(self.calls)):
                self.calls.append(stub.Check.future(ask, timeout=30))
                self.made += 1
            time.sleep(0.1)


def is_held(end: socket.socket) -> bool:
    """Whether the other side has not hung up."""
    end.setblocking(False)
    try:
        alive = end.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        alive = True
    except OSError:
        alive = False
    if not alive:
        end.close()
    return alive


if __name__ == "__main__":
    main(sys.argv[1:])
