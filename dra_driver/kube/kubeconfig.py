"""A client from a kubeconfig; the one adapter to the `kubernetes` package.

In: kubeconfig files. Out: a `KubeClient`. The package reads the file and gives certificates,
proxies and credential plugins. A driver in a pod has none of that, and the package takes 9 MiB and
70 ms, so this module is imported only when a kubeconfig is named.
"""

import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import urllib3
import yaml
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, kube_config

from dra_driver.errors import SetupError
from dra_driver.kube.client import Credentials, KubeClient, TokenFile
from dra_driver.kube.connections import Connect, Connections

_ENTRY = re.compile(r"/\{.*\}", re.DOTALL)
"""A user or cluster as the package prints it to say where a key is missing."""

_USER = re.compile(r"(?<=//)\S*@|[^\s/]*@")
"""A user and password before the host of an address, even of an invalid one."""


def from_kubeconfig(*paths: Path, context: str = "") -> KubeClient:
    """Return a client for a context of kubeconfig files, which are merged as by kubectl.

    For what several files say, the first one counts. An empty `context` is the current one. Raises
    SetupError if a file cannot be read, is not a valid kubeconfig, or has no such context.
    """
    logging.root.addFilter(_without_entries)  # what a credential plugin lacks is only logged
    configuration = Configuration(host="")
    named = os.pathsep.join(map(str, paths))
    try:
        files = {path: _content(path) for path in paths}
        used = context or _current_context(files)
        if context:
            _check_context(files, context, named)
        kube_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=named,
            context=used,
            client_configuration=configuration,
            persist_config=False,
        )
        token_file = _token_file(files, used)
        namespace = str(_context(files, used).get("namespace") or "default")
        _check_server(configuration.host)
        # The package reads tokenFile only once; a bound token would expire within an hour.
        own = None if token_file is None else TokenFile(token_file, clock=time.monotonic)
        return _client(configuration, own or _ConfiguredToken(configuration), namespace)
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read the kubeconfig: {error}") from error
    except (
        ConfigException,
        yaml.YAMLError,
        AttributeError,  # of what has another form, as the next ones
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise SetupError(f"{named} is not a valid kubeconfig: {_words(error)}") from error
    except ImportError as error:
        raise SetupError(
            f"{named} names a proxy of a kind that is not supported: {error}"
        ) from error


def _words(error: Exception) -> str:
    """Return what is wrong with a file, without any of its content, which may be a token."""
    if not isinstance(error, yaml.YAMLError):
        return _USER.sub("", _ENTRY.sub("", str(error)))
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return f"it is not YAML{where}"


def _without_entries(record: logging.LogRecord) -> bool:
    """Keep what the package logs, without any content of a kubeconfig."""
    record.msg, record.args = _ENTRY.sub("", record.getMessage()), ()
    return True


def _client(configuration: Configuration, credentials: Credentials, namespace: str) -> KubeClient:
    configuration.keep_alive = True
    if proxy := urlsplit(configuration.proxy or "").netloc.rpartition("@")[0]:
        user = urllib3.make_headers(proxy_basic_auth=unquote(proxy))
        configuration.proxy_headers = {**(configuration.proxy_headers or {}), **user}
    server = configuration.host.rstrip("/")
    pool = RESTClientObject(configuration).pool_manager.connection_from_url(server)
    if pool.proxy is not None and pool.scheme != "https":
        raise ValueError("its proxy-url needs a server that begins with https://")
    # A server behind a gateway has a path of its own.
    prefix = quote(urlsplit(server).path, safe="/%")
    connections = Connections(_connect_by(pool), pool.host, pool.port or 443)
    return KubeClient(connections, credentials, prefix=prefix, namespace=namespace)


def _connect_by(pool: urllib3.HTTPConnectionPool) -> Connect:
    """Return how to connect as urllib3 does: by proxies, and with all TLS options of a user."""

    def connect(timeout: float) -> socket.socket:
        # The pool calls this itself when a request needs a connection; there is no public way.
        connection: Any = pool._new_conn()  # noqa: SLF001 (see above)
        connection.timeout = timeout
        try:
            if pool.proxy is None:
                connection.connect()
            else:
                pool._prepare_proxy(connection)  # noqa: SLF001 (see above)
        except urllib3.exceptions.HTTPError as error:
            connection.close()
            if isinstance(error, urllib3.exceptions.SSLError):
                raise ssl.SSLError(str(error)) from error
            # It wraps what the system said: refused, no such name, timed out.
            cause = error.__cause__
            raise (cause if isinstance(cause, OSError) else OSError(str(error))) from None
        made: socket.socket = connection.sock
        return made

    return connect


def _check_server(address: str) -> None:
    """Raise ValueError for what is not the address of a server."""
    if not address:
        raise ValueError("its cluster names no server")
    url = urlsplit(address)
    if url.scheme not in {"http", "https"} or not url.hostname or url.port == 0:
        raise ValueError(f"its server {address!r} does not begin with https:// and a host")


class _ConfiguredToken:
    """Credentials as the `kubernetes` package has them: inline, from an exec plugin, or none."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def header(self) -> str | None:
        # Calls the package's refresh hook, which runs an exec plugin again once its token expired.
        return self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")

    def expire(self) -> None:
        """Nothing to forget: the package handles expiry itself."""


_Files = Mapping[Path, Mapping[str, Any]]
"""The content of kubeconfig files, in the order in which they were named."""


def _content(path: Path) -> Mapping[str, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TypeError("it is not a mapping")
    return content


def _current_context(files: _Files) -> str:
    """Return the first current context; the package would take the last one, unlike kubectl."""
    for content in files.values():
        if name := content.get("current-context"):
            return str(name)
    raise LookupError("it has no current-context")


def _check_context(files: _Files, context: str, named: str) -> None:
    known = sorted(name for content in files.values() for name in _entries(content, "contexts"))
    if context not in known:
        there = ", ".join(known) or "none"
        raise SetupError(f"{named} has no context {context!r}; there are: {there}")


def _entries(content: Mapping[str, Any], kind: str) -> dict[str, Mapping[str, Any]]:
    return {entry["name"]: entry[kind[:-1]] for entry in content.get(kind) or ()}


def _context(files: _Files, name: str) -> Mapping[str, Any]:
    """Return a context, from the first file that has it."""
    contexts = (_entries(content, "contexts") for content in files.values())
    return next(known[name] for known in contexts if name in known)


def _token_file(files: _Files, context: str) -> Path | None:
    """Return the `tokenFile` of a context's user, unless an inline token comes first."""
    name = _context(files, context).get("user")
    for path, content in files.items():
        users = _entries(content, "users")
        if name in users:
            user = users[name] or {}
            file = None if user.get("token") else user.get("tokenFile")
            return None if file is None else path.parent / str(file)
    return None
