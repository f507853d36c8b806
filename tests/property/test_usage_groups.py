"""Whatever a tenant makes below its container, a process stays that container's."""

import string

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.usage.processes import PodProcess, pod_process

HEX = "0123456789abcdef"
uids = st.uuids().map(str)
ids = st.text(HEX, min_size=64, max_size=64)
classes = st.sampled_from(["", "burstable", "besteffort"])
# What the kernel takes for the name of a group, and words that mean something to somebody.
names = st.one_of(
    st.text(st.characters(exclude_characters="/\n\0", exclude_categories=["Cs"]), min_size=1),
    st.sampled_from(["kubepods", "kubepods.slice", "user.slice", "burstable", ":", "0::"]),
    uids.map("pod{}".format),
    ids,
    ids.map("cri-containerd-{}.scope".format),
).filter(lambda name: name not in (".", ".."))


@st.composite
def paths(draw: st.DrawFn) -> tuple[str, PodProcess]:
    """A container's path, as one of four combinations makes it, and whose it is."""
    uid, container, quality = draw(uids), draw(ids), draw(classes)
    flat = uid.replace("-", "_")
    if draw(st.booleans()):
        middle = f"/{quality}" if quality else ""
        leaf = draw(st.sampled_from([container, f"crio-{container}"]))
        path = f"/kubepods{middle}/pod{uid}/{leaf}"
    else:
        stem = f"kubepods-{quality}" if quality else "kubepods"
        middle = f"/{stem}.slice" if quality else ""
        leaf = draw(st.sampled_from(["cri-containerd", "crio", "docker"]))
        path = f"/kubepods.slice{middle}/{stem}-pod{flat}.slice/{leaf}-{container}.scope"
    return path, PodProcess(pod_uid=uid, container_id=container)


@given(
    paths(), st.lists(names, max_size=6), st.sampled_from(["0::", "5:memory:", "1:name=systemd:"])
)
def test_groups_below_a_container_change_nothing(
    made: tuple[str, PodProcess], below: list[str], line: str
) -> None:
    path, expected = made
    text = "\n".join([line + "/".join([path, *below])])
    # A name may hold what Python, but not the kernel, takes for the end of a line.
    assert pod_process(text) == expected


@given(paths(), paths())
def test_no_container_passes_for_a_pod_that_is_not_above_it(
    own: tuple[str, PodProcess], other: tuple[str, PodProcess]
) -> None:
    found = pod_process(f"0::{own[0]}{other[0]}")
    assert found == own[1]


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    found = pod_process(text)
    assert found is None or set(found.pod_uid) <= set(string.hexdigits + "-")
