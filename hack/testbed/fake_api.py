"""The contract tests' API server (hack/apiserver) as a process of its own, where no cluster is."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from testbed.api import Api, Object
from testbed.commands import REPOSITORY, TestbedError, wait_until

SERVER = REPOSITORY / "hack" / "apiserver"


@contextmanager
def fake_api(folder: Path, objects: list[Object], kubernetes: str) -> Iterator[tuple[Api, Path]]:
    """Serve `objects`, and what is written later, until the end of the block.

    `kubernetes` is the version that it says it has, such as `1.37`.

    Yields:
        The API and the path of a kubeconfig for it, which lies in `folder`.
    """
    kubeconfig, seed = folder / "api.kubeconfig", folder / "objects.yaml"
    seed.write_text(yaml.safe_dump_all(objects))
    words = ["--port", "0", "--objects", str(seed), "--kubeconfig", str(kubeconfig)]
    words += ["--kubernetes", kubernetes]
    log = folder / "api.log"
    with log.open("ab") as output:
        server = subprocess.Popen(
            [sys.executable, SERVER, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:

        def written() -> bool:
            if server.poll() is not None:
                raise TestbedError(f"the API server ended:\n{log.read_text()}")
            # Its first line comes when it serves and the kubeconfig is written.
            return "http" in log.read_text()

        wait_until(written, "the contract tests' API server", timeout=20, interval=0.05)
        api = Api.from_kubeconfig(kubeconfig)
        try:
            yield api, kubeconfig
        finally:
            api.close()
    finally:
        server.terminate()
        server.wait(10)
