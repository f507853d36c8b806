"""A client for commands that people run anywhere.

In: what the command line names, and the environment. Out: a `KubeClient`. The order is kubectl's:
the named kubeconfig, those of KUBECONFIG, ~/.kube/config, and in a pod its ServiceAccount.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dra_driver.commands.command_line import option, shaped
from dra_driver.errors import SetupError
from dra_driver.kube.client import SERVICE_ACCOUNT_DIRECTORY, KubeClient

KUBECONFIG = option(
    default=None,
    help="Kubeconfig file; unset: KUBECONFIG, ~/.kube/config, or the pod's ServiceAccount.",
)
NODE_NAME = shaped(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?", "the name of a Node")
CONTEXT = option(default="", help="Context of the kubeconfig.")


def connect(kubeconfig: Path | None, context: str, *, environment: Mapping[str, str]) -> KubeClient:
    """Return a client; nothing is sent yet. An empty `context` is the kubeconfig's current one.

    Raises SetupError if there is no usable kubeconfig, and this process is not in a pod.
    """
    files = _files(kubeconfig, environment)
    if files:
        # Not at the top: a pod does not need it, and it takes memory.
        from dra_driver.kube.kubeconfig import from_kubeconfig  # noqa: PLC0415

        return from_kubeconfig(*files, context=context)
    if "KUBERNETES_SERVICE_HOST" not in environment:
        raise SetupError(
            "no cluster is configured: there is no ~/.kube/config, KUBECONFIG is not set, and "
            "this is not a pod; name a kubeconfig with --kubeconfig"
        )
    if context:
        raise SetupError(
            f"there is no kubeconfig to find the context {context!r} in; name one with --kubeconfig"
        )
    client = KubeClient.in_cluster(environment)
    # Not in `in_cluster`: a driver needs no namespace, and has to start without this file, too.
    with suppress(OSError, UnicodeDecodeError):
        own = (SERVICE_ACCOUNT_DIRECTORY / "namespace").read_text(encoding="utf-8").strip()
        client.namespace = own or client.namespace
    return client


def _files(named: Path | None, environment: Mapping[str, str]) -> tuple[Path, ...]:
    if named is not None:
        return (named,)
    variable = environment.get("KUBECONFIG", "")
    if listed := tuple(Path(part) for part in variable.split(os.pathsep) if part):
        # As with kubectl, some of several may be missing.
        if there := tuple(path for path in listed if path.exists()):
            return there
        raise SetupError(
            f"KUBECONFIG is {variable!r}, and there is no such file; correct or unset it, or name "
            "a kubeconfig with --kubeconfig"
        )
    home = environment.get("HOME")
    usual = Path(home) / ".kube" / "config" if home else None
    return (usual,) if usual and usual.is_file() else ()
