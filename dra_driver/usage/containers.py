"""The names of containers by their ids, as the kubelet notes them for collectors of logs.

In: the node's folder /var/log/containers. Out: pod, namespace and container by container id. The
kubelet makes a link there for each container (pkg/kubelet/kuberuntime):

    <pod>_<namespace>_<container>-<container id>.log

Only the links' names are read, and where they lead is of no interest. A name that would be longer
than a file's may be is cut by the kubelet, and with it the id: such a container is known by its id.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = "var/log/containers"
_MOST_LINKS = 20_000
_LINK = re.compile(
    r"(?P<pod>[a-z0-9][a-z0-9.-]{0,252})_(?P<namespace>[a-z0-9][a-z0-9-]{0,62})"
    r"_(?P<name>[a-z0-9][a-z0-9-]{0,62})-(?P<id>[0-9a-f]{64})\.log"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerName:
    """What a container is called, and the pod it is of."""

    namespace: str
    pod: str
    name: str


def container_names(*folders: Path) -> Mapping[str, ContainerName]:
    """Return the names of containers by id, from the first folder that is there; none without."""
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                links = [entry.name for entry, _ in zip(entries, range(_MOST_LINKS), strict=False)]
        except OSError:
            continue
        return {
            match["id"]: ContainerName(
                namespace=match["namespace"], pod=match["pod"], name=match["name"]
            )
            for match in map(_LINK.fullmatch, links)
            if match
        }
    return {}
