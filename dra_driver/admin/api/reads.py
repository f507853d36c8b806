"""How commands read from the API server: one object, or all of a kind page by page."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from dra_driver.kube.resource import RESOURCE_SLICES, Resource

_TIMEOUT_SECONDS = 30.0
"""Seconds for connecting, and for each wait for bytes of a page."""

_PAGE = 500
"""Objects on a page, as with kubectl."""

_SLICES_OF_A_PAGE = 100
"""A slice has up to 64 devices, and is then some 50 KiB."""


class Reads(Protocol):
    """What is needed of an API server."""

    def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, timeout: float
    ) -> dict[str, object]:
        """Return one object."""
        ...

    def each(
        self, resource: Resource, *, query: Mapping[str, str], page: int, timeout: float
    ) -> Iterator[dict[str, object]]:
        """Yield all objects of a kind, of all namespaces."""
        ...


def read(api: Reads, resource: Resource, name: str, namespace: str) -> dict[str, object]:
    """Return one object."""
    return api.get(resource, name, namespace=namespace, timeout=_TIMEOUT_SECONDS)


def read_all(
    api: Reads, resource: Resource, field_selector: str = ""
) -> Iterator[dict[str, object]]:
    """Yield all objects of a kind, of all namespaces, that have what a selector asks for."""
    query = {"fieldSelector": field_selector} if field_selector else {}
    page = _SLICES_OF_A_PAGE if resource is RESOURCE_SLICES else _PAGE
    return api.each(resource, query=query, page=page, timeout=_TIMEOUT_SECONDS)
