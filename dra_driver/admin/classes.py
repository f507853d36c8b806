"""`dra-driver classes`: the DeviceClasses behind resource names, for kubectl to apply.

In: resource names, or the share configs that say which names a node's shares serve. Out: on stdout
a DeviceClass for each name, from which the scheduler creates claims for containers whose limits use
the name (KEP-5004).

A share serves the name in its attribute `resourceName`; a device that is divided into shares has
`sharedAs` and serves none; otherwise `nvidia.com/gpu` is a whole GPU, and `nvidia.com/mig-…` a MIG
device of that profile. A selector that fails on one device would block the claim on all
nodes, so none needs an attribute that a device may not have. Needs no cluster and no GPU.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from dra_driver.admin.validate.command import read_manifests
from dra_driver.admin.validate.node_configs import configs_of, is_node_config
from dra_driver.admin.validate.objects import objects_of
from dra_driver.admin.wrong_names import meant
from dra_driver.commands.command_line import FILE, CommandSettings, argument, option
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import ConfigError
from dra_driver.kube.manifest import BrokenManifestError, read_documents
from dra_driver.shares.config import read_node_config
from resource_nvidia_com.problems import dotted
from resource_nvidia_com.resource_names import GPU, PREFIX, resource_name

HEADER: Final = """\
# The DeviceClasses behind resource names in a container's limits, as `dra-driver classes` prints
# them: the scheduler creates a claim for these classes by itself (KEP-5004). The attribute
# `resourceName` of a share is the name that it serves; a device that is divided into shares serves
# none itself (`sharedAs`). Where nothing is divided, `nvidia.com/gpu` is a whole GPU.
"""

_MIG: Final = re.compile(
    r"mig-(?P<profile>(?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb(?:-[^.]+)?)(?:\.(?P<extra>.+))?"
)
"""A MIG device's name after the prefix.

A dot after the profile's memory stands for NVIDIA's `+`, which is not allowed in resource names:
mig-1g.10gb.me is 1g.10gb+me.
"""

_ATTRIBUTES: Final = f"device.attributes['{DRIVER_NAME}']"


class Classes(CommandSettings):
    """Print the DeviceClasses of resource names, given directly or by share configs."""

    example = "dra-driver classes nvidia.com/gpu | kubectl apply -f -"

    names: list[str] = argument(
        default=[],
        check=resource_name,
        metavar="NAME",
        help="Resource names, such as nvidia.com/gpu, or gpu for short.",
    )
    share_config: list[str] = option(
        default=[],
        metavar=FILE,
        help="Share config, by itself or in a ConfigMap; a folder means all manifests in it; - "
        "reads stdin. May be repeated.",
    )

    def cli_cmd(self) -> None:
        """Print the classes."""
        served = [name for source in self.share_config for name in served_names(source)]
        for name in self.names:
            if name not in served and (why := _unserved(name)):
                sys.stderr.write(f"warning: {name}: {why}\n")
        names = dict.fromkeys((*self.names, *served))
        if not names:
            raise ConfigError(
                "no resource name is given: name some, such as nvidia.com/gpu, or give a share "
                "config that shares something (--share-config FILE)"
            )
        sys.stdout.write(manifest(names))


def _unserved(resource: str) -> str:
    """Return why a name may be served by no device; empty for the usual names."""
    if (wrong := meant(resource)) or _whole(resource.removesuffix(".shared")):
        return wrong
    return (
        f"only shares that a share config gives this name serve it; whole GPUs serve {GPU}, MIG "
        f"devices {PREFIX}mig-1g.10gb and so on"
    )


def served_names(source: str) -> list[str]:
    """Return the resource names that the share configs of a file, a folder or stdin (`-`) serve."""
    names: dict[str, None] = {}
    configs = 0
    try:
        for file, text in read_manifests(source):
            for origin, config in _configs_in(text, file):
                configs += 1
                resources = read_node_config(config.encode(), origin).resources
                names |= dict.fromkeys(resource.served_as for resource in resources)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{source} cannot be read: {reason}") from error
    if not configs:
        raise ConfigError(
            f"{source} has no share config: give a file with `version: v1` and `sharing`, or a "
            "ConfigMap that contains one"
        )
    return list(names)


def _configs_in(text: str, file: str) -> Iterator[tuple[str, str]]:
    """Yield (origin for errors, text) of the share configs in a file."""
    try:
        values = [document.value for document in read_documents(text)]
    except BrokenManifestError as error:
        place = f"{file}:{error.place.line}:{error.place.column}"
        raise ConfigError(f"{place}: {error}") from error
    if any(map(is_node_config, values)):
        yield file, text
    for value in values:
        for where, each in objects_of(value):
            for path, config in configs_of(each, where) if each.get("kind") == "ConfigMap" else ():
                yield f"{file}: {dotted(path)}", config


def manifest(names: Mapping[str, None]) -> str:
    """Return the DeviceClasses of resource names as YAML, in their order."""
    return HEADER + "---\n".join(map(_device_class, names))


def class_name(resource: str) -> str:
    """Return the name of the DeviceClass behind a resource name."""
    return f"{resource.removeprefix(PREFIX)}.resource.{PREFIX.rstrip('/')}"


def _device_class(resource: str) -> str:
    lines = (" " * 10 + line for line in _selector(resource))
    return f"""\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: {class_name(resource)}
spec:
  extendedResourceName: {resource}
  selectors:
    - cel:
        expression: >-
{chr(10).join(lines)}
"""


def _selector(resource: str) -> list[str]:
    """Return the lines of the CEL expression that selects what serves a resource name."""
    driver = f"device.driver == '{DRIVER_NAME}' &&"
    whole = _whole(resource)
    if whole is None:
        return [driver, f"{_ATTRIBUTES}.?resourceName.orValue('') == '{resource}'"]
    return [
        driver,
        f"{_ATTRIBUTES}.?resourceName.orValue(",
        f"'sharedAs' in {_ATTRIBUTES} ? '' :",
        f"{whole} ?",
        f"'{resource}' : '')",
        f"== '{resource}'",
    ]


def _whole(resource: str) -> str | None:
    """Return the condition for undivided devices that serve a name; None: only shares do."""
    if resource == GPU:
        return f"{_ATTRIBUTES}.?type.orValue('') == 'gpu'"
    profile = mig_profile(resource)
    return f"{_ATTRIBUTES}.?profile.orValue('') == '{profile}'" if profile else None


def mig_profile(resource: str) -> str | None:
    """Return the MIG profile that a resource name stands for; None if it stands for none."""
    match = _MIG.fullmatch(resource.removeprefix(PREFIX))
    if match is None:
        return None
    return match["profile"] + (f"+{match['extra']}" if match["extra"] else "")
