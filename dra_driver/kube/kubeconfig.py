"""A client from a kubeconfig; the one door to the `kubernetes` package.

In: a kubeconfig file. Out: a `KubeClient`. The package reads the file and gives certificates,
proxies and credential plugins. A driver in a pod has none of that, and the package takes 9 MiB and
70 ms, so this module is imported only when a kubeconfig is named.
"""

import time
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, kube_config

from dra_driver.errors import SetupError
from dra_driver.kube.client import POOL_SIZE, Credentials, FileToken, KubeClient
from dra_driver.kube.token import TokenFile


def from_kubeconfig(path: Path) -> KubeClient:
    """Return a client for the current context of a kubeconfig file.

    Raises:
        SetupError: the file cannot be read or is not a valid kubeconfig.
    """
    configuration = Configuration(host="")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        kube_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(path),
            client_configuration=configuration,
            persist_config=False,
        )
        token_file = _token_file(content)
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read the kubeconfig: {error}") from error
    except (ConfigException, yaml.YAMLError, LookupError, TypeError, ValueError) as error:
        raise SetupError(f"{path} is not a valid kubeconfig: {error}") from error
    if not configuration.host:
        raise SetupError(f"{path} is not a valid kubeconfig: its cluster names no server")
    if token_file is None:
        return _client(configuration, _ConfiguredToken(configuration))
    # The package reads tokenFile once and never again; a bound token would be dead in an hour.
    tokens = TokenFile(path.parent / token_file, clock=time.monotonic)
    return _client(configuration, FileToken(tokens))


def _client(configuration: Configuration, credentials: Credentials) -> KubeClient:
    configuration.connection_pool_maxsize = POOL_SIZE
    configuration.keep_alive = True
    server = configuration.host.rstrip("/")
    # The pool of the one server: asking the manager for it costs each request 0.1 ms.
    pool = RESTClientObject(configuration).pool_manager.connection_from_url(server)
    # A server behind a gateway has a path of its own.
    return KubeClient(pool, credentials, prefix=urlsplit(server).path)


class _ConfiguredToken:
    """Credentials as the `kubernetes` package knows them: inline, from an exec plugin, or none."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def header(self) -> str | None:
        # Calls the package's refresh hook, which runs an exec plugin again once its token expired.
        return self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")

    def expire(self) -> None:
        """Nothing to forget: expiry is the package's own affair here."""


def _token_file(content: object) -> str | None:
    """Return the `tokenFile` of a kubeconfig's user, unless an inline token comes first."""
    if not isinstance(content, dict):
        raise TypeError("it is not a mapping")
    name = content["current-context"]
    contexts = {entry["name"]: entry["context"] for entry in content.get("contexts") or ()}
    users = {entry["name"]: entry["user"] for entry in content.get("users") or ()}
    user = users.get(contexts[name].get("user")) or {}
    file = None if user.get("token") else user.get("tokenFile")
    return None if file is None else str(file)
