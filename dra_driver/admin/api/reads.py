"""How commands read from the API server: one object, or all of a kind page by page."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Protocol

from msgspec.structs import replace

from dra_driver.admin.api.objects import DEVICE_TAINT_RULES
from dra_driver.errors import ApiError
from dra_driver.kube.fields import Object, at
from dra_driver.kube.resource import RESOURCE_SLICES, Resource

_TIMEOUT_SECONDS = 30.0
"""Seconds for connecting, and for each wait for bytes of a page."""

_PAGE = 500
"""Objects on a page, as with kubectl."""

_SLICES_OF_A_PAGE = 100
"""A slice has up to 64 devices, and is then some 50 KiB."""


class Reads(Protocol):
    """The requests that commands send to an API server."""

    def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, timeout: float
    ) -> dict[str, object]:
        """Return one object."""
        ...

    def list(
        self, resource: Resource, *, query: Mapping[str, str], timeout: float
    ) -> dict[str, object]:
        """Return a page of the objects of a kind, of all namespaces."""
        ...


def each(
    api: Reads,
    resource: Resource,
    *,
    query: Mapping[str, str] | None = None,
    page: int = _PAGE,
    timeout: float,
) -> Iterator[dict[str, object]]:
    """Yield all objects of a kind, `page` of them with each request."""
    asked = {**(query or {}), "limit": str(page)}
    following: object = None
    while True:
        more = {"continue": str(following)} if following else {}
        answer = api.list(resource, query=asked | more, timeout=timeout)
        items = answer.get("items")
        yield from items if isinstance(items, list) else []
        following = at(answer, "metadata", "continue")
        if not following:
            return


def read(api: Reads, resource: Resource, name: str, namespace: str) -> dict[str, object]:
    """Return one object."""
    return api.get(resource, name, namespace=namespace, timeout=_TIMEOUT_SECONDS)


def read_all(
    api: Reads, resource: Resource, field_selector: str = ""
) -> Iterator[dict[str, object]]:
    """Yield all objects of a kind, of all namespaces, that match a field selector."""
    query = {"fieldSelector": field_selector} if field_selector else {}
    page = _SLICES_OF_A_PAGE if resource is RESOURCE_SLICES else _PAGE
    return each(api, resource, query=query, page=page, timeout=_TIMEOUT_SECONDS)


def taint_rules(each: Callable[[Resource], Iterable[Object]]) -> list[Object]:
    """Return all DeviceTaintRules: as v1 from Kubernetes 1.37 on, before that as beta or alpha.

    `each` reads all objects of a kind.
    """
    for version in ("v1", "v1beta2", "v1alpha3"):
        try:
            return list(each(replace(DEVICE_TAINT_RULES, version=version)))
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    return []
