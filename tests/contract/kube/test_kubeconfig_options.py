"""What a kubeconfig may say of the way to its server: certificates, names, proxies."""

import base64
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed.apiserver.server import ApiServer

from dra_driver.errors import UnavailableError
from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig

Certificate = tuple[Path, Path]
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}


@pytest.fixture
def server(certificate: Certificate) -> Iterator[ApiServer]:
    with ApiServer(tls=certificate) as running:
        running.put(NODE)
        yield running


@pytest.fixture
def asked(server: ApiServer, tmp_path: Path) -> Callable[..., str]:
    """Asks for the Node with a kubeconfig changed as said, and returns its name."""

    def ask(user: dict[str, Any] | None = None, **cluster: Any) -> str:
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
        config = yaml.safe_load(path.read_text())
        there = config["clusters"][0]["cluster"] | cluster
        config["clusters"][0]["cluster"] = {key: one for key, one in there.items() if one}
        config["users"][0]["user"] = user or {}
        path.write_text(yaml.safe_dump(config))
        client = from_kubeconfig(path)
        try:
            return name_of(client)
        finally:
            client.close()

    return ask


def name_of(client: KubeClient) -> str:
    found: dict[str, Any] = client.get_node("n1", timeout=5)
    return str(found["metadata"]["name"])


def test_the_certificate_is_checked_against_tls_server_name(
    server: ApiServer, asked: Callable[..., str]
) -> None:
    elsewhere = {"server": f"https://localhost:{server.port}"}
    with pytest.raises(UnavailableError, match=r"TLS with the API server failed.*localhost"):
        asked(**elsewhere)
    assert asked(**elsewhere, **{"tls-server-name": "127.0.0.1"}) == "n1"


def test_insecure_skip_tls_verify_is_respected(
    asked: Callable[..., str], make_certificate: Callable[[Path], Certificate], tmp_path: Path
) -> None:
    other = str(make_certificate(tmp_path / "other")[0])
    with pytest.raises(UnavailableError, match="TLS with the API server failed"):
        asked(**{"certificate-authority": other})
    assert asked(**{"certificate-authority": None, "insecure-skip-tls-verify": True}) == "n1"


@pytest.mark.parametrize("inline", [False, True])
def test_a_client_certificate_is_shown_to_the_server(
    server: ApiServer,
    asked: Callable[..., str],
    make_certificate: Callable[[Path], Certificate],
    tmp_path: Path,
    inline: bool,
) -> None:
    mine = make_certificate(tmp_path / "mine")
    assert server._server is not None
    assert server._server._context is not None
    server._server._context.verify_mode = ssl.CERT_REQUIRED
    server._server._context.load_verify_locations(mine[0])
    with pytest.raises(UnavailableError):
        asked()
    user = {
        f"{name}-data" if inline else name: (
            base64.b64encode(path.read_bytes()).decode() if inline else str(path)
        )
        for name, path in zip(("client-certificate", "client-key"), mine, strict=True)
    }
    assert asked(user) == "n1"


class Proxy:
    """Grants every CONNECT, or none, and remembers what was asked for."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:secret@127.0.0.1:{self.listener.getsockname()[1]}"
        self.threads = [threading.Thread(target=self._serve)]
        self.threads[0].start()

    def _serve(self) -> None:
        with self.listener, suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                head = client.recv(65536)
                self.asked.append(head)
                client.sendall(self.answer)
                if b" 200 " not in self.answer:
                    client.close()
                    continue
                host, port = head.split()[1].decode().split(":")
                server = socket.create_connection((host, int(port)))
                for ways in ((client, server), (server, client)):
                    self.threads.append(threading.Thread(target=_pass_on, args=ways))
                    self.threads[-1].start()

    def stop(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with source, suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)


def test_a_proxy_is_used(server: ApiServer, asked: Callable[..., str]) -> None:
    proxy = Proxy(b"HTTP/1.1 200 Connection established\r\n\r\n")
    assert asked(**{"proxy-url": proxy.url}) == "n1"
    proxy.stop()
    (head,) = proxy.asked
    assert head.startswith(b"CONNECT 127.0.0.1:%d " % server.port)
    assert b"proxy-authorization: Basic " + base64.b64encode(b"user:secret") in head


def test_a_proxy_that_refuses_is_named(asked: Callable[..., str]) -> None:
    proxy = Proxy(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    with pytest.raises(UnavailableError, match="403 Forbidden"):
        asked(**{"proxy-url": proxy.url})
    proxy.stop()


def test_proxies_of_the_environment_are_used_but_for_hosts_that_it_excepts(
    server: ApiServer, asked: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(b"HTTP/1.1 200 Connection established\r\n\r\n")
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert asked() == "n1"
    assert len(proxy.asked) == 1
    monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
    assert asked() == "n1"
    proxy.stop()
    assert len(proxy.asked) == 1


def test_a_client_certificate_that_is_replaced_is_shown_from_the_next_connection_on(
    server: ApiServer, make_certificate: Callable[[Path], Certificate], tmp_path: Path
) -> None:
    former, mine, new = (make_certificate(tmp_path / name) for name in ("former", "mine", "new"))
    path = server.write_kubeconfig(tmp_path / "kubeconfig")
    config = yaml.safe_load(path.read_text())
    config["users"][0]["user"] = {"client-certificate": str(mine[0]), "client-key": str(mine[1])}
    path.write_text(yaml.safe_dump(config))

    def show(certificate: Certificate) -> None:
        for source, target in zip(certificate, mine, strict=True):
            shutil.copy(source, target)

    assert server._server is not None
    assert server._server._context is not None
    server._server._context.verify_mode = ssl.CERT_REQUIRED
    server._server._context.load_verify_locations(new[0])
    show(former)
    client = from_kubeconfig(path)
    with pytest.raises(UnavailableError):
        name_of(client)
    show(new)
    assert name_of(client) == "n1"
    client.close()
