"""HTTP/1.1 with the one API server, by libcurl, over connections that are kept alive.

In: where the server is and whom to trust, and requests. Out: their answers. A handle of libcurl
keeps one connection, knows whether it still is one, and serves one thread at a time. Why libcurl,
and what it costs: docs/decisions/0027-libcurl-speaks-http.md.
"""

import errno
import os
import re
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Any

import pycurl
from msgspec import Struct

_CONNECT_SECONDS = 5.0
_MOST_IDLE = 32
"""Kept-alive connections: every worker of the kubelet's service, and some room."""

_LARGEST_BODY = 256 * 1024 * 1024
"""Bytes of a body that is kept whole. A page of a list has at most 500 objects, and etcd stores at
most 1.5 MiB of one; in practice such a page has a few MiB."""

_CA_CACHE_TIMEOUT = 321  # CURLOPT_CA_CACHE_TIMEOUT, for which pycurl has no name
_DATE = re.compile(rb"^date:[ \t]*(.*?)\s*$", re.IGNORECASE | re.MULTILINE)


class NotReachableError(OSError):
    """There is no connection to be had."""


class TlsError(OSError):
    """One side does not trust the other, or cannot show who it is."""


class BrokenError(OSError):
    """A connection ended before an answer did, or what came is no HTTP."""


_AWAY = {pycurl.E_COULDNT_RESOLVE_PROXY, pycurl.E_COULDNT_RESOLVE_HOST, pycurl.E_COULDNT_CONNECT}
_TLS = {getattr(pycurl, name) for name in dir(pycurl) if name.startswith("E_SSL_")}


class Server(Struct, frozen=True, kw_only=True):
    """A server and the way to it. Its files are read again for each connection: they change."""

    host: str
    port: int
    scheme: str = "https"
    name: str = ""  # that its certificate has to have, if not the host's
    authority: str | None = None  # certificates of those who may have signed it, in a file
    authorities: str | None = None  # or in a folder
    is_checked: bool = True
    certificate: str | None = None  # our own
    key: str | None = None
    proxy: str = ""


class Response(Struct, frozen=True, kw_only=True):
    """An answer; `retry_after` is in seconds. Of a stream, `parts` stands for `data`."""

    status: int
    data: bytes = b""
    retry_after: int | None = None
    date: str | None = None
    parts: "Parts | None" = None


class Connections:
    """Sends requests to one server; safe to use from many threads.

    Both ways to send raise NotReachableError, TlsError, BrokenError, or TimeoutError.
    """

    def __init__(self, server: Server) -> None:
        """Take what to connect to. Nothing is sent yet."""
        self.host = _address(server.host, server.port)
        self._base = f"{server.scheme}://{_address(server.name or server.host, server.port)}"
        self._options = _options(server)
        self._lock = threading.Lock()
        self._idle: list[tuple[Any, int]] = []  # each with its connection's descriptor
        self._is_closed = False

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout: float,
        dated: bool = False,
    ) -> Response:
        """Send a request and return its answer; its date only if that is asked for.

        `timeout` is in seconds, for all of it; to connect takes 5 of them at most.
        """
        head, handle, is_good = BytesIO(), self._taken(), False
        try:
            self._set_up(handle, path, headers, timeout)
            handle.setopt(pycurl.TIMEOUT_MS, _milliseconds(timeout))
            handle.setopt(pycurl.CUSTOMREQUEST, method)
            # For each header this thread would have to wait for the interpreter's lock.
            handle.setopt(pycurl.HEADERFUNCTION, head.write if dated else None)
            # libcurl sends again what a server hung up on, but not what it cannot rewind.
            handle.setopt(pycurl.UPLOAD, int(bool(body)))
            handle.setopt(pycurl.INFILESIZE_LARGE, len(body))
            handle.setopt(pycurl.READFUNCTION, BytesIO(body).read)
            # Ctrl-C is heard when libcurl calls Python, with this once a second.
            is_main = threading.current_thread() is threading.main_thread()
            handle.setopt(pycurl.NOPROGRESS, int(not is_main))
            response = _response(handle, handle.perform_rb(), head.getvalue())
            is_good = True
        except pycurl.error as error:
            raise _failure(handle, *error.args) from None
        finally:
            self._give_back(handle, is_good=is_good)
        return response

    def stream(self, path: str, *, headers: Mapping[str, str], timeout: float) -> Response:
        """Send a GET and return its answer, of which the body is to come if its status is 200.

        `timeout` is in seconds: for all before the body, and then for each wait for a part of it.
        """
        handle = self._made()
        self._set_up(handle, path, headers, timeout)
        parts = Parts(handle, timeout)
        with ExitStack() as otherwise:
            otherwise.callback(parts.close)
            if not parts.is_there():
                return _response(handle, b"".join(parts.chunks()), b"")
            otherwise.pop_all()
        return Response(status=HTTPStatus.OK, parts=parts)

    def close(self) -> None:
        """Close the connections that wait for a request; the others are, after their answers."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for handle, _ in idle:
            handle.close()

    def _made(self) -> Any:
        handle = pycurl.Curl()
        for option, value in self._options:
            handle.setopt(option, value)
        return handle

    def _taken(self) -> Any:
        """Return the handle that was used last, of those whose connection is quiet."""
        while True:
            with self._lock:
                if not self._idle:
                    return self._made()
                handle, descriptor = self._idle.pop()
            # Nothing was asked: what comes is its end, or nothing to be believed. libcurl looks,
            # too, but not within the first second.
            ready = select.poll()
            ready.register(descriptor, select.POLLIN)
            if not ready.poll(0):
                return handle
            handle.close()

    def _give_back(self, handle: Any, *, is_good: bool) -> None:
        descriptor = handle.getinfo(pycurl.ACTIVESOCKET)
        handle.setopt(pycurl.WRITEFUNCTION, _ignore)  # in place of the body, which is held by it
        with self._lock:
            if is_good and descriptor >= 0 and not self._is_closed and len(self._idle) < _MOST_IDLE:
                self._idle.append((handle, descriptor))
                return
        handle.close()

    def _set_up(self, handle: Any, path: str, headers: Mapping[str, str], timeout: float) -> None:
        handle.setopt(pycurl.URL, self._base + path)
        lines = [f"Host: {self.host}", *(f"{name}: {value}" for name, value in headers.items())]
        handle.setopt(pycurl.HTTPHEADER, [*lines, "Expect:"])
        handle.setopt(pycurl.CONNECTTIMEOUT_MS, _milliseconds(min(_CONNECT_SECONDS, timeout)))


class Parts:
    """The body of an answer, part by part; `shutdown` from any thread ends a wait for one."""

    def __init__(self, handle: Any, timeout: float) -> None:
        """Take a handle that is to be sent; each wait may take `timeout` seconds."""
        self._handle = handle
        self._timeout = timeout
        self._received: list[bytes] = []
        self._is_whole = False
        self._socket: socket.socket | None = None
        self._multi = pycurl.CurlMulti()
        handle.setopt(pycurl.WRITEFUNCTION, self._received.append)
        self._multi.add_handle(handle)

    def is_there(self) -> bool:
        """Wait for the answer; tell whether it is 200. Those of status 1xx only precede it."""
        deadline = monotonic() + self._timeout
        while (status := self._handle.getinfo(pycurl.RESPONSE_CODE)) < HTTPStatus.OK:
            if self._is_whole:
                raise BrokenError("it closed the connection before its answer")
            self._proceed(deadline)
        if status != HTTPStatus.OK:
            return False
        self._handle.setopt(pycurl.MAXFILESIZE_LARGE, 0)
        if not self._is_whole:
            self._socket = socket.socket(fileno=os.dup(self._handle.getinfo(pycurl.ACTIVESOCKET)))
        return True

    def chunks(self) -> Iterator[bytes]:
        """Yield what comes, until the end."""
        while self._received or not self._is_whole:
            deadline = monotonic() + self._timeout
            while not (self._received or self._is_whole):
                self._proceed(deadline)
            received = self._received[:]
            self._received.clear()
            yield from received

    def shutdown(self) -> None:
        """Let a reader in another thread find the end now."""
        if self._socket is not None:
            with suppress(OSError):  # it ended by itself in the meantime
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._multi.close()
        self._handle.close()
        if self._socket is not None:
            self._socket.close()

    def _proceed(self, deadline: float) -> None:
        left, due = deadline - monotonic(), self._multi.timeout() / 1000
        if left <= 0:
            raise TimeoutError(f"nothing came within {self._timeout:.3g} s")
        if self._socket is None:
            self._multi.select(min(left, 0.1))
        else:  # a watch may have a number too high for select
            ready = select.poll()
            ready.register(self._socket, select.POLLIN)
            ready.poll(1000 * (left if due < 0 else min(left, due)))
        self._multi.perform()
        _, whole, failed = self._multi.info_read()
        for _, code, said in failed:
            raise _failure(self._handle, code, said)
        self._is_whole = bool(whole)


def _failure(handle: Any, code: int, said: str) -> OSError:
    """Return the error for one of libcurl's, in its words where there are no better ones."""
    why = os.strerror(handle.getinfo(pycurl.OS_ERRNO))
    refused = handle.getinfo(pycurl.HTTP_CONNECTCODE) >= HTTPStatus.MULTIPLE_CHOICES
    if code in _AWAY or refused or (code in _TLS and why in said):  # in the middle of a handshake
        return NotReachableError(said.replace("Could not connect to server", why))
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return TimeoutError(said)
    if code == pycurl.E_SSL_CACERT_BADFILE and not Path(said.rpartition(": ")[2]).exists():
        said += f": {os.strerror(errno.ENOENT)}"
    if code in _TLS or " alert " in said:  # of a client's certificate a server speaks later
        return TlsError(said)
    if code == pycurl.E_FILESIZE_EXCEEDED:
        said = f"its answer has more than {_LARGEST_BODY >> 20} MiB"
    elif code in {pycurl.E_GOT_NOTHING, pycurl.E_SEND_FAIL_REWIND}:
        said = "it closed the connection before its answer"
    return BrokenError(said)


def _options(server: Server) -> tuple[tuple[int, object], ...]:
    """Return what a handle is told of a server, and of what libcurl would do by itself."""
    port, name = server.port, server.name
    elsewhere = [f"{_address(name, port)}:{_address(server.host, port)}"] if name else []
    return (
        (pycurl.NOSIGNAL, 1),
        (pycurl.XFERINFOFUNCTION, _ignore),
        (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
        (pycurl.PATH_AS_IS, 1),
        (pycurl.TCP_KEEPALIVE, 1),
        (pycurl.MAXFILESIZE_LARGE, _LARGEST_BODY),
        (pycurl.CONNECT_TO, elsewhere),
        # The environment's proxies hold for kubeconfigs, which have seen to them.
        (pycurl.PROXY, server.proxy),
        (pycurl.NOPROXY, ""),
        (pycurl.HTTPPROXYTUNNEL, 1),
        # Nothing of TLS is remembered: a file that was replaced counts from the next connection on.
        (pycurl.SSL_SESSIONID_CACHE, 0),
        (_CA_CACHE_TIMEOUT, 0),
        (pycurl.SSL_VERIFYPEER, int(server.is_checked)),
        (pycurl.SSL_VERIFYHOST, 2 if server.is_checked else 0),
        (pycurl.CAINFO, server.authority),
        (pycurl.CAPATH, server.authorities),
        *(((pycurl.SSLCERT, server.certificate),) if server.certificate else ()),
        *(((pycurl.SSLKEY, server.key),) if server.key else ()),
    )


def _response(handle: Any, data: bytes, head: bytes) -> Response:
    dates = _DATE.findall(head)  # the last is the answer's: a proxy's, and those of 1xx, precede it
    # libcurl reads a date in Retry-After, too, and says 0 if there is no such header.
    return Response(
        status=handle.getinfo(pycurl.RESPONSE_CODE),
        data=data,
        retry_after=handle.getinfo(pycurl.RETRY_AFTER) or None,
        date=dates[-1].decode("latin-1") if dates else None,
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))  # 0 would be for ever


def _ignore(*_: object) -> None:
    """Take no notice."""
