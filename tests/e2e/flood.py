"""What a tenant's pod does to driver and supervisor: `flood.py ADDRESS:HTTP-PORT:HEALTH-PORT …`.

200 idle connections to each port, and 4000 health checks under way; what is lost is begun again.
A port of 0 is left out. Runs in the driver's image, which has gRPC, until it is ended.
"""

import itertools
import socket
import sys
import time
from contextlib import suppress

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

IDLE, CHECKS, CHANNELS = 200, 4000, 8

Address = tuple[str, int]


def main(words: list[str]) -> None:
    """Flood for ever, and say each second what is held."""
    targets = [word.split(":") for word in words]
    ports = [(host, int(port)) for host, *both in targets for port in both if port != "0"]
    stubs = [
        health_pb2_grpc.HealthStub(
            grpc.insecure_channel(f"{host}:{port}", [("grpc.use_local_subchannel_pool", 1)])
        )
        for host, _, port in targets
        for _ in range(CHANNELS)
        if port != "0"
    ]
    ask = health_pb2.HealthCheckRequest(service="liveness")
    idle: dict[Address, list[socket.socket]] = {port: [] for port in ports}
    calls: list[grpc.Future] = []
    while True:
        for port, held in idle.items():
            held[:] = [*filter(is_held, held)]
            for _ in range(IDLE - len(held)):
                with suppress(OSError):
                    held.append(socket.create_connection(port, timeout=1))
        calls = [one for one in calls if not one.done()]
        for stub in itertools.islice(itertools.cycle(stubs), CHECKS - len(calls)):
            calls.append(stub.Check.future(ask, timeout=30))
        sys.stdout.write(f"flooding: {[*map(len, idle.values())]} idle, {len(calls)} checks\n")
        sys.stdout.flush()
        time.sleep(1)


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
