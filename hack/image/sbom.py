"""An image's software bill of materials, as CycloneDX JSON.

In: an image's files, with Debian's package descriptions and Python's distribution metadata. Out: a
document that names each package with version, licence and package URL. It is read from the image
itself, not from the lock file, so that it lists what is really there.
"""

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import PurePosixPath

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from image.archive import Image

_DEBIAN = re.compile(r"var/lib/dpkg/status\.d/[^/]+")
_PYTHON = re.compile(r"usr/local/lib/python3\.\d+/dist-packages/[^/]+\.dist-info/METADATA")


def document(image: Image, name: str, version: str) -> str:
    """The bill of materials of an image, by name and version, as JSON text.

    The same image gives the same text: the serial number is made from its digest, and the time is
    the epoch, as in the image.
    """
    components = list(_components(image))
    bom = Bom(components=components)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, image.digest)
    bom.metadata.timestamp = datetime.fromtimestamp(0, UTC)
    bom.metadata.component = root = Component(
        name=name,
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        purl=PackageURL(
            type="oci", name=name, version=image.digest, qualifiers={"arch": image.arch}
        ),
    )
    bom.register_dependency(root, components)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _components(image: Image) -> Iterator[Component]:
    distribution = _distribution(image)
    for path, member in sorted(image.members.items()):
        text = member.content.decode(errors="replace")
        if _DEBIAN.fullmatch(path):
            yield _debian(HeaderParser().parsestr(text), distribution)
        elif _PYTHON.fullmatch(path):
            yield _python(HeaderParser().parsestr(text), PurePosixPath(path).parent.name)


def _distribution(image: Image) -> str:
    """Debian's release, such as debian-13: scanners look vulnerabilities up by it."""
    text = image.members["usr/lib/os-release"].content.decode()
    match = re.search(r'^VERSION_ID="?([0-9.]+)', text, re.MULTILINE)
    return f"debian-{match[1]}" if match else "debian"


def _debian(fields: Message, distribution: str) -> Component:
    name, version = fields["Package"], fields["Version"]
    qualifiers = {"arch": fields["Architecture"], "distro": distribution}
    if source := fields["Source"]:
        qualifiers["upstream"] = source.split()[0]
    url = PackageURL(
        type="deb", namespace="debian", name=name, version=version, qualifiers=qualifiers
    )
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, bom_ref=f"deb/{name}", purl=url
    )


def _python(fields: Message, folder: str) -> Component:
    name, version = fields["Name"], fields["Version"]
    licence = fields["License-Expression"] or fields["License"]
    # Some packages put their licence's whole text here.
    is_name = bool(licence) and "\n" not in licence and len(licence) <= 100
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"pypi/{folder}",
        purl=PackageURL(type="pypi", name=name.lower().replace("_", "-"), version=version),
        licenses=[DisjunctiveLicense(name=licence)] if is_name else None,
    )
