"""Whatever names a claim has: files stay in their folder, and mounts in theirs."""

import posixpath
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import device_metadata as reader
import make
from dra_driver.claims.model.claim import Claim, ClaimRef, ClaimUid, parse_claim
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.prepare.device_metadata import (
    MetadataFiles,
    container_paths,
    documents,
    rendered,
)

GPU = make.gpu(1)
BAD = ("..", ".", "", "/", "\0", "\n", "../x", "a/../b", "a//b", "A", "ä", "-a", "a-", "a" * 64)
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True)
words = labels | st.sampled_from(BAD) | st.text(max_size=6)
names = words | st.lists(words, min_size=2, max_size=4).flatmap(
    lambda some: st.sampled_from(["/", ".", "/../"]).map(lambda by: by.join(some))
)


def claim_named(name: str, said: object, requests: list[str]) -> Claim | None:
    found = make.claim_object(*("gpu-1" for _ in requests), name=name)
    found["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": said}
    results = found["status"]["allocation"]["devices"]["results"]
    for result, request in zip(results, requests, strict=True):
        result["request"] = request
    return parse_claim(found, "gpu.nvidia.com")


def drafted(claim: Claim) -> ClaimRecord:
    """The record that a claim gets, as far as names go (Transaction.draft)."""
    base = make.record(GPU).devices[0]
    changes: list[Mapping[str, object]] = [
        {"request_names": (result.base_request,), "subrequest": result.subrequest}
        for result in claim.results
    ]
    facts = {"name": base.name, "device": make.device(GPU), "pool": base.pool}
    ids = {"cdi_device_ids": base.cdi_device_ids}
    return make.record(
        devices=tuple(type(base)(**facts, **ids, **change) for change in changes),  # type: ignore[arg-type]
        ref=ClaimRef(uid=ClaimUid("uid"), namespace="n", name=claim.ref.name),
        pod_claim_name=claim.pod_claim_name,
    )


@given(names, names | st.none() | st.integers(), st.lists(names, max_size=3))
def test_no_name_leads_out_of_a_folder(name: str, said: object, requests: list[str]) -> None:
    claim = claim_named(name, said, requests)
    assert claim is not None
    record = drafted(claim)
    files = MetadataFiles(Path("/data"))
    paths = container_paths(record)
    found = documents(record, {GPU.uuid: GPU}, make.inventory(GPU), {})
    assert paths.keys() == found.keys() <= {result.base_request for result in claim.results}
    for request, path in paths.items():
        assert posixpath.normpath(path) == path
        folder, kind, owner, asked, file = path.rsplit("/", 4)
        assert (folder, asked, file) == (reader.FOLDER, request, reader.FILE)
        assert (kind, owner) in {
            ("resourceclaims", name),
            ("resourceclaimtemplates", claim.pod_claim_name),
        }
        assert Path(files.path(record.ref.uid, request)).parent == Path("/data/device-metadata/uid")
        assert (kind == "resourceclaimtemplates") is bool(claim.pod_claim_name)
        reader.check(reader.read(rendered(found[request], 1).decode()))
