"""A file server on loopback that can also break off in the middle of a file."""

import http.server
import threading
from typing import Self


class FileServer:
    """Serves `files` by path; those in `truncated` end after half their bytes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.truncated: set[str] = set()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        served = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append(self.path)
                content = served.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                half = self.path in served.truncated
                self.wfile.write(content[: len(content) // 2] if half else content)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.01,), name="file-server", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join(timeout=10)
        self._http.server_close()
