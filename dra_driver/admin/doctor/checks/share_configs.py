"""Which node uses which share config, and whether the configs are valid.

In: the pod of our DaemonSet, which shows where the driver reads its config; the ConfigMap mounted
there; labels of nodes; on a node, the driver's notes. Out: findings, with the errors that
`dra-driver validate` prints: the driver's own code (shares/) chooses and reads the configs. Pure.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from msgspec import Struct

from dra_driver.admin.doctor.checks.finding import Seen, error, info, ok, unknown, warning
from dra_driver.errors import ConfigError
from dra_driver.host.words import named
from dra_driver.kube.fields import Object, mapping, objects, text, texts_by_name
from dra_driver.shares.choice import LABEL, choose_name
from dra_driver.shares.config import read_node_config
from dra_driver.shares.notes import ShareNotes
from resource_nvidia_com.device_plugin import NodeConfig

_PATHS = ("SHARE_CONFIG", "CONFIG_FILE")
_DEFAULT = "SHARE_CONFIG_DEFAULT"

_HOLDS_ON = (
    "until then each node keeps the last config that it could use; a node that never had one "
    "offers no GPU"
)


class Source(Struct, frozen=True, kw_only=True):
    """Where a DaemonSet's driver reads its share config.

    Attributes:
        config_map: the ConfigMap's name; empty if it is mounted from elsewhere.
        file: the one file that is read, with any node labels; empty for a folder.
        default: the config for nodes without the label; empty if none is named.
        paths: names of files by key of the ConfigMap, if the volume has them.
    """

    config_map: str
    optional: bool
    file: str = ""
    default: str = ""
    paths: Mapping[str, str] = {}


def source_of(pod: Object) -> Source | None:
    """Return where the driver in a pod of this spec reads its share config; None for nowhere."""
    volumes = {text(each, "name"): each for each in objects(pod, "volumes")}
    for container in objects(pod, "containers"):
        env = {text(entry, "name"): text(entry, "value") for entry in objects(container, "env")}
        path = next((env[name] for name in _PATHS if env.get(name)), "")
        if not path:
            continue
        for mount in objects(container, "volumeMounts"):
            folder = PurePosixPath(text(mount, "mountPath"))
            volume = mapping(volumes.get(text(mount, "name"), {}), "configMap")
            if not volume or not PurePosixPath(path).is_relative_to(folder):
                continue
            file = text(mount, "subPath") or str(PurePosixPath(path).relative_to(folder))
            return Source(
                config_map=text(volume, "name"),
                optional=volume.get("optional") is True,
                file="" if file == "." else file,
                default=env.get(_DEFAULT, ""),
                paths={text(item, "key"): text(item, "path") for item in objects(volume, "items")},
            )
        return Source(config_map="", optional=True)
    return None


def of_cluster(
    source: Source | None,
    config_map: Object | None,
    namespace: str,
    labels: Mapping[str, Mapping[str, str]],
) -> Iterator[Seen]:
    """Check the configs in a ConfigMap, and the choice of each node on which the driver runs."""
    if source is None:
        yield ok("the driver is started without --share-config: nothing is shared")
        return
    if not source.config_map:
        yield unknown(
            "the share config is not in a ConfigMap, but in files on the nodes",
            "run doctor in the driver's pod on a node: it shows that driver's config",
        )
        return
    where = f"ConfigMap {namespace}/{source.config_map}"
    if config_map is None and not source.optional:
        yield error(f"there is no {where}: the driver's pods wait for it", "create it")
        return
    data = _files(source, config_map or {})
    used, wrong = _choices(source, sorted(data), where, labels)
    yield from wrong
    for name in sorted(data):
        yield from _config(name, data[name], where, used.get(name, []))
    unshared = used.get(None, [])
    if unshared and not data:
        yield from _without_configs(where, unshared, labels)
    elif unshared:
        yield info(
            f"nothing is shared on {named(unshared)}: they have no label {LABEL}, and no config of "
            f'{where} is named "default"'
        )


def of_node(notes: ShareNotes) -> Iterator[Seen]:
    """Report what the driver of this node has recorded about its share config."""
    if notes.problem is not None:
        holds = f"; {notes.origin} is in use" if notes.origin else "; no config is in use"
        yield error(
            f"this node's driver cannot use its newest share config: {notes.problem}{holds}",
            f"correct the config; {_HOLDS_ON}",
        )
    elif notes.origin:
        yield ok(f"this node's driver uses {notes.origin}")
    else:
        yield ok("no driver has recorded a share config on this node")
    yield from (info(f"on this node: {remark}") for remark in notes.remarks)
    if notes.waiting:
        yield info(
            f"on this node: a new config takes effect on {named(notes.waiting)} once no claim uses "
            "them (`dra-driver status` names the claims)"
        )


def _files(source: Source, config_map: Object) -> dict[str, bytes]:
    """Return the content of each file that the ConfigMap is mounted as."""
    files = {key: value.encode() for key, value in texts_by_name(config_map, "data").items()}
    for key, value in texts_by_name(config_map, "binaryData").items():
        try:
            files[key] = base64.b64decode(value)
        except binascii.Error:
            files[key] = b""
    if source.paths:
        files = {source.paths[key]: data for key, data in files.items() if key in source.paths}
    if source.file:
        files = {name: data for name, data in files.items() if name == source.file}
    return files


def _choices(
    source: Source, names: list[str], where: str, labels: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str | None, list[str]], list[Seen]]:
    """Return the nodes by the config that each uses, and what is wrong with their choice."""
    used: dict[str | None, list[str]] = {}
    wrong: dict[str, list[str]] = {}
    for node in sorted(labels):
        name: str | None
        try:
            if source.file:
                name = _only_file(source.file, names, where)
            else:
                label = labels[node].get(LABEL, "")
                name, _ = choose_name(names, label=label, default=source.default, where=where)
        except ConfigError as problem:
            wrong.setdefault(str(problem), []).append(node)
        else:
            used.setdefault(name, []).append(node)
    advice = f"kubectl label node NODE --overwrite {LABEL}=NAME, or add the config; {_HOLDS_ON}"
    return used, [error(f"{named(nodes)}: {text}", advice) for text, nodes in wrong.items()]


def _only_file(name: str, names: list[str], where: str) -> str:
    if name not in names:
        raise ConfigError(f'there is no key for the file "{name}" in {where}')
    return name


def _config(name: str, data: bytes, where: str, nodes: list[str]) -> Iterator[Seen]:
    """Check one config, and report which nodes use it."""
    what = f'share config "{name}" of {where}'
    users = f"used by {named(nodes)}" if nodes else "used by no node"
    try:
        config = read_node_config(data, name)
    except ConfigError as problem:
        report = error if nodes else warning
        yield report(f"{what}, {users}, cannot be used: {problem}", f"correct it; {_HOLDS_ON}")
        return
    yield ok(f"{what}, {users}: {_words(config)}")
    yield from (info(f"{what}: {text}") for text in config.warnings if nodes)


def _words(config: NodeConfig) -> str:
    if not config.resources or config.shared_by is None:
        return "shares nothing"
    parts = (f"{resource.replicas} of each {resource.name}" for resource in config.resources)
    return f"{config.shared_by}, {', '.join(parts)}"


def _without_configs(
    where: str, nodes: list[str], labels: Mapping[str, Mapping[str, str]]
) -> Iterator[Seen]:
    labelled = [node for node in nodes if labels[node].get(LABEL)]
    if labelled:
        yield warning(
            f"nothing is shared on {named(labelled)}, whose label {LABEL} names a share config: "
            f"{where} does not exist, or is empty",
            "create the ConfigMap (the chart's value config.map), or remove the label",
        )
    elif nodes:
        yield ok(f"nothing is shared: {where} does not exist, or is empty")
