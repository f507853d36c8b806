"""A client from a kubeconfig; the one door to the `kubernetes` package.

In: kubeconfig files. Out: a `KubeClient`. The package reads the file, and gives certificates,
proxies and credential plugins; it sends nothing. A driver in a pod has none of that, and the
package takes 9 MiB and 70 ms, so this module is imported only when a kubeconfig is named.
"""

import os
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import should_bypass_proxies
from kubernetes.config import ConfigException, kube_config
from msgspec import Struct

from dra_driver.errors import SetupError
from dra_driver.kube.client import Credentials, KubeClient
from dra_driver.kube.connections import Connections, Server
from dra_driver.kube.token import TokenFile


def from_kubeconfig(*paths: Path, context: str = "") -> KubeClient:
    """Return a client for a context of kubeconfig files, which count as one as with kubectl.

    What several files say, the first says. An empty `context` is the current one. Raises SetupError
    if a file cannot be read, is not a valid kubeconfig, or has no such context.
    """
    configuration = Configuration(host="")
    named = os.pathsep.join(map(str, paths))
    try:
        files = [_File(path=path, content=_content(path)) for path in paths]
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
        server = _server(configuration)
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read the kubeconfig: {error}") from error
    except (ConfigException, yaml.YAMLError, LookupError, TypeError, ValueError) as error:
        raise SetupError(f"{named} is not a valid kubeconfig: {error}") from error
    credentials: Credentials = _ConfiguredToken(configuration)
    if token_file is not None:
        # The package reads it once and never again; a bound token would be dead in an hour.
        credentials = TokenFile(token_file, clock=time.monotonic)
    # A server behind a gateway has a path of its own.
    prefix = quote(urlsplit(configuration.host).path.rstrip("/"), safe="/%")
    return KubeClient(Connections(server), credentials, prefix=prefix, namespace=namespace)


def _server(configuration: Configuration) -> Server:
    """Return where the server is, by which way, and what its user has of TLS."""
    if not configuration.host:
        raise ValueError("its cluster names no server")
    url = urlsplit(configuration.host)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError(
            f"its server {configuration.host!r} does not begin with https:// and a host"
        )
    proxy = configuration.proxy
    if not proxy or should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
        proxy = ""
    # Without an authority of its own it has to be one of those that this machine trusts.
    trusted = ssl.get_default_verify_paths()
    own = configuration.ssl_ca_cert
    return Server(
        host=url.hostname,
        port=url.port or (80 if url.scheme == "http" else 443),
        scheme=url.scheme,
        name=configuration.tls_server_name or "",
        authority=own or trusted.cafile,
        authorities=None if own else trusted.capath,
        is_checked=configuration.verify_ssl,
        certificate=configuration.cert_file,
        key=configuration.key_file,
        proxy=proxy,
    )


class _ConfiguredToken:
    """Credentials as the `kubernetes` package knows them: inline, from an exec plugin, or none."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def header(self) -> str | None:
        # Calls the package's refresh hook, which runs an exec plugin again once its token expired.
        return self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")

    def expire(self) -> None:
        """Nothing to forget: expiry is the package's own affair here."""


class _File(Struct, frozen=True, kw_only=True):
    """A kubeconfig file and what it holds."""

    path: Path
    content: Mapping[str, Any]


def _content(path: Path) -> Mapping[str, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TypeError("it is not a mapping")
    return content


def _current_context(files: Sequence[_File]) -> str:
    """Return the first current context; the package would take the last one, unlike kubectl."""
    named = (one.content.get("current-context") for one in files)
    found = next((name for name in named if name), None)
    if found is None:
        raise LookupError("it has no current-context")
    return str(found)


def _check_context(files: Sequence[_File], context: str, named: str) -> None:
    known = sorted(name for one in files for name in _entries(one, "contexts"))
    if context not in known:
        there = ", ".join(known) or "none"
        raise SetupError(f"{named} has no context {context!r}; there are: {there}")


def _entries(file: _File, kind: str) -> dict[str, Mapping[str, Any]]:
    """Return the contexts or users of a file, by name."""
    return {entry["name"]: entry[kind[:-1]] for entry in file.content.get(kind) or ()}


def _context(files: Sequence[_File], name: str) -> Mapping[str, Any]:
    """Return a context, as the first file says it that has it."""
    return next(found[name] for one in files if name in (found := _entries(one, "contexts")))


def _token_file(files: Sequence[_File], context: str) -> Path | None:
    """Return the `tokenFile` of a context's user, unless an inline token comes first."""
    name = _context(files, context).get("user")
    for one in files:
        users = _entries(one, "users")
        if name in users:
            user = users[name] or {}
            file = None if user.get("token") else user.get("tokenFile")
            return None if file is None else one.path.parent / str(file)
    return None
