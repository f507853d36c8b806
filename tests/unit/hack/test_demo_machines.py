"""On which machines a demo can run, and what is made of it there."""

from pathlib import Path

import pytest
from demo import demos, show
from demo.machines import UnfitError, machine

from dra_driver.shares.config import read_node_config

MIG = {"mig", "mig-extended-resource", "mig-four-on-one", "mig-mps", "shares-mig"}
WHOLE = {
    *("mps", "shared-gpu", "sick-gpu", "time-slicing", "time-slicing-and-mps", "whole-gpu"),
    *("gpu-with-nic", "shares-eighty-twenty", "shares-memory", "shares-replicas"),
}
OF_A_PRODUCT = {"one-claim-four-pods"}
TO_MACHINES = {"passthrough"}
"""Where GPUs are not behind NVSwitches."""


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (show.PROFILE, MIG | WHOLE | OF_A_PRODUCT),
        ("h100x8", MIG | WHOLE | OF_A_PRODUCT),
        ("h200x8", MIG | WHOLE | OF_A_PRODUCT),
        ("b200x8", MIG | WHOLE),
        ("a100-80x8", MIG | WHOLE | OF_A_PRODUCT),
        ("a100x8", MIG | WHOLE | OF_A_PRODUCT | {"mig-on-a100"}),
        ("a30x4", WHOLE | TO_MACHINES | {"mig-mps", "shares-mig"}),
        ("rtxpro6000x8", WHOLE | TO_MACHINES | {"mig-mps", "shares-mig"}),
        ("t4x4", WHOLE | TO_MACHINES),
        ("v100x8", WHOLE | TO_MACHINES),
        ("l4x2", (WHOLE | TO_MACHINES) - {"gpu-with-nic", "sick-gpu", "whole-gpu"}),
        ("laptop", {"shares-replicas"}),
        (
            "mixed",
            {"gpu-with-nic", "shared-gpu", "shares-replicas", "sick-gpu", "whole-gpu"}
            | (MIG - {"mig-four-on-one"})
            | OF_A_PRODUCT
            | TO_MACHINES,
        ),
        (
            "generations",
            {"gpu-with-nic", "shared-gpu", "shares-replicas", "sick-gpu", "time-slicing"}
            | {"whole-gpu"}
            | (MIG - {"mig-four-on-one"})
            | OF_A_PRODUCT
            | TO_MACHINES,
        ),
    ],
)
def test_all_demos_are_run_but_those_that_the_cards_cannot_show(
    profile: str, expected: set[str]
) -> None:
    chosen, left_out = demos.load_all(demos.names(), machine(profile))
    assert {demo.name for demo in chosen} == expected
    assert {*left_out} == {*demos.names()} - expected


@pytest.mark.parametrize(
    ("demo", "profile", "reason"),
    [
        ("mig", "l4x2", "it takes GPUs with MIG; l4-x2 has 2 GPUs: NVIDIA L4"),
        ("mig", "a30x4", "devices such as 3g.40gb of h100-80gb, of which NVIDIA A30 has no like"),
        ("whole-gpu", "laptop", "it takes 4 GPUs; laptop-mx150 has 1 GPU: NVIDIA GeForce MX150"),
        ("gpu-with-nic", "l4x2", "it takes NICs below 2 PCIe roots with GPUs; l4-x2 has 2 GPUs"),
        ("passthrough", "laptop", "it takes 2 GPUs; laptop-mx150 has 1 GPU: NVIDIA GeForce MX150"),
        ("passthrough", "h100x8", "it takes GPUs that are not behind NVSwitches; h100-80gb-x8 has"),
        ("mps", "laptop", "it takes compute capability 7.0; NVIDIA GeForce MX150 has 6.1"),
        ("time-slicing", "mixed", "it sets a time-slice; Tesla P4 has none that can be set"),
        ("mig-four-on-one", "mixed", "4 GPUs of one product with MIG, and of NVIDIA A100"),
        ("one-claim-four-pods", "t4x4", "whose product matches a100|h100|h200; t4-x4 has 4 GPUs"),
    ],
)
def test_why_a_demo_cannot_run_is_said(demo: str, profile: str, reason: str) -> None:
    with pytest.raises(UnfitError) as error:
        demos.load(demo, machine(profile))
    assert reason in str(error.value)


@pytest.mark.parametrize("path", sorted(demos.FOLDER.glob("*/share-config.yaml")))
def test_the_share_config_of_a_demo_is_right(path: Path) -> None:
    config = read_node_config(path.read_bytes(), path.name)
    asked = (path.parent / "demo.yaml").read_text()
    assert config.resources
    assert all(f"{resource.served_as}: " in asked for resource in config.resources)
