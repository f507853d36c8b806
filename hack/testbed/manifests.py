"""The objects of an installation: manifests/install.yaml, and its DeviceClasses alone."""

import yaml

from testbed.api import Object
from testbed.commands import REPOSITORY

INSTALL = REPOSITORY / "manifests" / "install.yaml"
CLASSES = REPOSITORY / "deviceclasses"
"""A folder with a file for each shipped DeviceClass, or for several, and a kustomization."""


def installed(*kinds: str) -> list[Object]:
    """The objects of install.yaml, in its order: those of some kinds, or all."""
    objects = yaml.load_all(INSTALL.read_text(), Loader=yaml.CSafeLoader)
    return [each for each in objects if not kinds or each["kind"] in kinds]
