"""The program of the kubelet's exec probes: asks the driver of its own pod once how it is.

In: the driver's health socket (--health-socket), and `liveness` or `readiness`. Out: exit status 0
if all is well, otherwise 1 and what is wrong on stdout. It runs every few seconds on each node, so
it imports nothing of this package, and the image runs it by `python3 -I -S`: a tenth of the CPU
time of `dra-driver`. The kubelet gives it a time limit.
"""

import sys
from _socket import AF_UNIX, SOCK_STREAM, socket  # `socket` takes twice the time, for its enums

WELL = b"ok\n"


def main() -> int:
    """Ask, and return the exit status."""
    if len(sys.argv) != 3:
        sys.stderr.write("usage: dra-driver-probe HEALTH-SOCKET liveness|readiness\n")
        return 2
    _, path, service = sys.argv
    end = socket(AF_UNIX, SOCK_STREAM)
    try:
        end.connect(path)
        end.send(service.encode())
        answer, why = end.recv(4096), "it closed the connection"
    except OSError as error:
        answer, why = b"", error.strerror or str(error)
    answer = answer or f"the driver does not answer at {path}: {why}\n".encode()
    sys.stdout.write(answer.decode(errors="replace") if answer != WELL else "")
    return int(answer != WELL)


if __name__ == "__main__":
    sys.exit(main())
