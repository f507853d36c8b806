"""ResourceClaims as a dict, in the place of an API server."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.errors import NotFoundError


class ClaimApi:
    """ResourceClaims by namespace and name. `trouble` is called before each answer."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[str] = []
        self.trouble: Callable[[str], None] = lambda _: None

    def get_claim(self, namespace: str, name: str, *, timeout: float) -> dict[str, Any]:
        assert timeout > 0
        self.asked.append(name)
        self.trouble(name)
        if (namespace, name) not in self.claims:
            raise NotFoundError(f'resourceclaims "{name}" not found', status=404)
        return deepcopy(self.claims[namespace, name])

    def add(self, *devices: str, requests: Sequence[str] = (), **facts: Any) -> ClaimRef:
        """Allocate a claim, each device to a request of its own if `requests` are named."""
        claim = make.claim_object(*devices, **facts)
        metadata = claim["metadata"]
        self.claims[metadata["namespace"], metadata["name"]] = claim
        ref = ClaimRef(
            uid=ClaimUid(metadata["uid"]), namespace=metadata["namespace"], name=metadata["name"]
        )
        if requests:
            for result, request in zip(self.results(ref), requests, strict=True):
                result["request"] = request
        return ref

    def results(self, ref: ClaimRef) -> list[dict[str, Any]]:
        """The allocation results of a claim, to be changed."""
        claim = self.claims[ref.namespace, ref.name]
        found: list[dict[str, Any]] = claim["status"]["allocation"]["devices"]["results"]
        return found
