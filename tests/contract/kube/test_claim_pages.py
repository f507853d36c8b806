"""All claims of a cluster, page by page, over real HTTP."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.resource import RESOURCE_CLAIMS

PAGES = {"": (["a", "b"], "next"), "next": (["c"], "")}


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = parse_qs(urlparse(self.path).query)
        assert asked["limit"] == ["500"]
        uids, following = PAGES[asked.get("continue", [""])[0]]
        items = [{"metadata": {"uid": uid, "namespace": "n", "name": uid}} for uid in uids]
        body = json.dumps(
            {
                "kind": "ResourceClaimList",
                "apiVersion": "resource.k8s.io/v1",
                "metadata": {"continue": following},
                "items": items,
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_all_claims_come_page_by_page(url: str, tmp_path: Path) -> None:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    client = from_kubeconfig(path)
    found = [claim["metadata"]["uid"] for claim in client.each(RESOURCE_CLAIMS, timeout=5)]  # type: ignore[index]
    client.close()
    assert found == ["a", "b", "c"]
