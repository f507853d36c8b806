"""Config precedence against a model that is slow and plain: the last config that matches wins."""

from hypothesis import given
from hypothesis import strategies as st

import make
from dra_driver.claims.model.claim import parse_claim
from dra_driver.claims.model.config import DeviceKind, group_by_config

REQUESTS = ["a", "b", "a/x", "a/y", "b/x"]

configs = st.lists(
    st.tuples(
        st.sampled_from(["FromClass", "FromClaim"]),
        st.lists(st.sampled_from([*REQUESTS, "other"]), max_size=3),
        st.booleans(),
    ),
    max_size=6,
)
"""(source, requests, is it for another driver)."""


@given(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4), configs)
def test_the_last_matching_config_holds(
    requests: list[str], written: list[tuple[str, list[str], bool]]
) -> None:
    entries = []
    for index, (source, named, foreign) in enumerate(written):
        percent = {"defaultActiveThreadPercentage": index}
        sharing = {"strategy": "MPS", "mpsConfig": percent}
        entry = make.config(*named, source=source, sharing=sharing)
        if foreign:
            entry["opaque"]["driver"] = "net.example.com"
        entries.append(entry)
    value = make.claim_object(*(f"gpu-{n}" for n in range(len(requests))), configs=entries)
    results = value["status"]["allocation"]["devices"]["results"]
    for result, request in zip(results, requests, strict=True):
        result["request"] = request

    found: dict[str, int | None] = {}
    kinds = {result["device"]: DeviceKind.GPU for result in results}
    for config, of_config in group_by_config(parse_claim(value, "gpu.nvidia.com"), kinds):
        sharing_found = config.sharing if config else None
        mps = sharing_found.mps_config if sharing_found else None
        for one in of_config:
            found[one.device] = mps.default_active_thread_percentage if mps else None

    expected: dict[str, int | None] = {}
    for result in results:
        expected[result["device"]] = None
        for wanted in ("FromClass", "FromClaim"):
            for index, (source, named, foreign) in enumerate(written):
                names = (result["request"], result["request"].split("/")[0])
                matches = not named or any(name in named for name in names)
                if source == wanted and not foreign and matches:
                    expected[result["device"]] = index
    assert found == expected
