"""Configs as hypothesis makes them: most are nearly right, some are right, some are nonsense."""

from typing import Any

from hypothesis import strategies as st

from bad_configs import VERSION

Json = Any

scalars: st.SearchStrategy[Json] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**63), max_value=2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=90),
)
anything: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
numbers = st.from_regex(r"\A[+-]?([0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,4})\Z")
suffixes = st.sampled_from(
    [
        "",
        "Ki",
        "Mi",
        "Gi",
        "Ei",
        "n",
        "u",
        "m",
        "k",
        "M",
        "G",
        "E",
        "e3",
        "E-2",
        "e+9",
        "GiB",
        "K",
        " ",
    ]
)
quantities = st.one_of(
    st.sampled_from(
        ["1Mi", "1048576", "1048575", "1048575.5", "1024Ki", "1e6", "1.048576M", "", "Gi"]
    ),
    st.builds("{}{}".format, numbers, suffixes),
    st.integers(min_value=-1, max_value=2**40),
    st.sampled_from([1048576.5, 0.5]),
)
devices = st.one_of(
    st.integers(min_value=-2, max_value=40).map(str),
    st.sampled_from(["GPU-", "GPU-8d0f", "MIG-2c4f", "gpu-0", "+1", "01", "", "1.5"]),
    st.text(max_size=4),
)


def mostly(right: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Mostly what is asked for, sometimes null, sometimes anything."""
    others = {0: anything, 1: st.none()}
    return st.integers(min_value=0, max_value=19).flatmap(lambda n: others.get(n, right))


def fields(**of: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """An object with some of the fields, and now and then one that nobody knows."""
    known = st.fixed_dictionaries({}, optional=of)
    strange = [{"strategie": 1}, {"multiuser": None}, {"iommu": None}, {"'\\\n": 2}]
    unknown = st.sampled_from([*[{}] * 27, *strange])
    return st.builds(lambda one, other: one | other, known, unknown)


mps = fields(
    defaultActiveThreadPercentage=mostly(st.integers(min_value=-1, max_value=101)),
    defaultPinnedDeviceMemoryLimit=mostly(quantities),
    defaultPerDevicePinnedMemoryLimit=mostly(
        st.dictionaries(devices, mostly(quantities), max_size=3)
    ),
    multiUser=mostly(st.booleans()),
)
sharings = fields(
    strategy=mostly(st.sampled_from([*["MPS", "TimeSlicing"] * 6, "mps", ""])),
    timeSlicingConfig=mostly(
        fields(
            interval=mostly(st.sampled_from(["Default", "Short", "Medium", "Long", "Long", "long"]))
        )
    ),
    mpsConfig=mostly(mps),
)


iommus = fields(
    backendPolicy=mostly(st.sampled_from([*["LegacyOnly", "PreferIommuFD"] * 4, "legacyonly", ""])),
    enableAPIDevice=mostly(st.booleans()),
)


def _of_kind(kind: str) -> st.SearchStrategy[Json]:
    root = {"apiVersion": VERSION, "kind": kind}
    own = {"iommu": iommus} if kind == "VfioDeviceConfig" else {"sharing": sharings}
    known = {name: mostly(part) for name, part in own.items()}
    return fields(**known).map(lambda rest: root | rest)


roots = fields(apiVersion=mostly(st.just(VERSION)), kind=mostly(st.just("GpuConfig")))

configs: st.SearchStrategy[Json] = st.one_of(
    _of_kind("GpuConfig"),
    _of_kind("GpuConfig"),
    _of_kind("MigDeviceConfig"),
    _of_kind("VfioDeviceConfig"),
    roots,
)
