"""The small API server in a separate process, without a cluster."""

import multiprocessing
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from testbed.api import Api, Object
from testbed.apiserver.server import ApiServer
from testbed.commands import TestbedError


@contextmanager
def fake_api(folder: Path, objects: list[Object], kubernetes: str) -> Iterator[tuple[Api, Path]]:
    """Serve `objects`, and what is written later, until the end of the block.

    `kubernetes` is the version that it reports, such as `1.37`.

    Yields:
        The API and the path of a kubeconfig for it, which lies in `folder`.
    """
    kubeconfig = folder / "api.kubeconfig"
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    server = spawning.Process(target=_serve, args=(objects, kubernetes, kubeconfig, theirs))
    server.start()
    theirs.close()
    try:
        if not ours.poll(20) or not _says_it_serves(ours):
            raise TestbedError("the small API server did not start")
        with closing(Api.from_kubeconfig(kubeconfig)) as api:
            yield api, kubeconfig
    finally:
        ours.close()  # which ends it
        server.join(10)


def _says_it_serves(server: Connection) -> bool:
    with suppress(EOFError):
        return bool(server.recv())
    return False


def _serve(objects: list[Object], kubernetes: str, kubeconfig: Path, starter: Connection) -> None:
    with ApiServer(kubernetes=kubernetes) as server:
        server.put(*objects)
        server.write_kubeconfig(kubeconfig)
        starter.send(True)
        with suppress(EOFError):
            starter.recv()  # until the parent closes the pipe, or ends
