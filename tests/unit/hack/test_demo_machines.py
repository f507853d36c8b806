"""On which machines a demo can run, and what is made of it there."""

from pathlib import Path

import pytest
import yaml
from demo import demos, show
from demo.machines import Needs, UnfitError, fit, machine, parse_needs
from testbed.commands import TestbedError

from dra_driver.shares.config import read_node_config

MIG = {"mig", "mig-extended-resource", "mig-four-on-one", "mig-mps", "shares-mig"}
WHOLE = {
    *("mps", "shared-gpu", "sick-gpu", "time-slicing", "time-slicing-and-mps", "whole-gpu"),
    *("gpu-with-nic", "shares-eighty-twenty", "shares-memory", "shares-replicas"),
}
OF_A_PRODUCT = {"one-claim-four-pods"}


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (show.PROFILE, MIG | WHOLE | OF_A_PRODUCT),
        ("h100x8", MIG | WHOLE | OF_A_PRODUCT),
        ("h200x8", MIG | WHOLE | OF_A_PRODUCT),
        ("b200x8", MIG | WHOLE),
        ("a100-80x8", MIG | WHOLE | OF_A_PRODUCT),
        ("a100x8", MIG | WHOLE | OF_A_PRODUCT | {"mig-on-a100"}),
        ("a30x4", WHOLE | {"mig-mps", "shares-mig"}),
        ("rtxpro6000x8", WHOLE | {"mig-mps", "shares-mig"}),
        ("t4x4", WHOLE),
        ("v100x8", WHOLE),
        ("l4x2", WHOLE - {"gpu-with-nic", "sick-gpu", "whole-gpu"}),
        ("laptop", {"shares-replicas"}),
        (
            "mixed",
            {"gpu-with-nic", "shared-gpu", "shares-replicas", "sick-gpu", "whole-gpu"}
            | (MIG - {"mig-four-on-one"})
            | OF_A_PRODUCT,
        ),
        (
            "generations",
            {"gpu-with-nic", "shared-gpu", "shares-replicas", "sick-gpu", "time-slicing"}
            | {"whole-gpu"}
            | (MIG - {"mig-four-on-one"})
            | OF_A_PRODUCT,
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


def test_a_demo_that_is_asked_for_by_name_and_cannot_run_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert show.main(["--demo", "mig-on-a100"]) == 1
    said = capsys.readouterr().out
    assert "demo mig-on-a100 cannot run on h100x8-mig: it is for GPUs whose product matches" in said
    assert "Profiles that can: a100x8\n" in said


def test_an_unknown_machine_names_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["--profile", "a100x9"]) == 1
    said = capsys.readouterr().out
    assert "no profile 'a100x9'" in said
    assert {"a100x8", "h100x8", "l4-x2"} <= {*said.replace(",", "").split()}
    with pytest.raises(TestbedError, match="laptop-mx150"):
        machine("")


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        ("h100x8", ["1g.10gb", "2g.20gb", "3g.40gb"]),
        ("h200x8", ["1g.18gb", "2g.35gb", "3g.71gb"]),
        ("b200x8", ["1g.23gb", "2g.45gb", "3g.90gb"]),
        ("a100-80x8", ["1g.10gb", "2g.20gb", "3g.40gb"]),
        ("a100x8", ["1g.5gb", "2g.10gb", "3g.20gb"]),
    ],
)
def test_mig_profiles_go_by_the_names_of_the_card(profile: str, names: list[str]) -> None:
    demo = demos.load("mig-four-on-one", machine(profile), (1, 36))
    small, medium, large = names
    assert demo.mig["pod-0/small0"] == demo.mig["pod-0/small1"] == (small,)
    assert (demo.mig["pod-0/medium"], demo.mig["pod-0/large"]) == ((medium,), (large,))
    (template,) = (
        one for one in yaml.safe_load_all(demo.text) if one["kind"] == "ResourceClaimTemplate"
    )
    asked = str(template["spec"]["spec"]["devices"]["requests"])
    assert [asked.count(f"profile == '{name}'") for name in names] == [2, 1, 1]
    assert demo.made == (small, small, medium, large)


@pytest.mark.parametrize(
    ("profile", "divided", "switched", "by_reset"),
    [
        (show.PROFILE, (4, 5, 6, 7), (), False),
        ("h100x8", (0, 1, 2, 3), (0, 1, 2, 3), False),
        ("a100x8", (2, 3, 0, 1), (2, 3, 0, 1), True),
    ],
)
def test_an_admin_turns_mig_mode_on_where_it_is_off(
    profile: str, divided: tuple[int, ...], switched: tuple[int, ...], by_reset: bool
) -> None:
    fitted = demos.load("mig-four-on-one", machine(profile)).fit
    assert (fitted.divided, fitted.switched, fitted.by_reset) == (divided, switched, by_reset)


def test_gpus_in_mig_mode_are_not_counted_as_whole() -> None:
    wanted = Needs(gpus=5)
    with pytest.raises(UnfitError, match=r"5 GPUs; h100-80gb-x8-mig has 8 GPUs: .*, 4 of them in"):
        fit(wanted, "", machine(show.PROFILE))


def test_the_demo_machine_shows_every_demo_without_an_admin_but_for_one() -> None:
    chosen, _ = demos.load_all(demos.names(), machine(show.PROFILE))
    assert {demo.name for demo in chosen if demo.fit.switched or demo.made} == {"shares-mig"}


def test_before_1_37_an_admin_makes_the_mig_devices() -> None:
    chosen, left_out = demos.load_all(demos.names(), machine(show.PROFILE), (1, 36))
    assert {demo.name for demo in chosen if demo.made} == MIG
    assert {*left_out} == {"mig-on-a100"}
    (mig,) = (demo for demo in chosen if demo.name == "mig")
    assert mig.made == ("1g.10gb", "1g.10gb", "3g.40gb")


def test_a_demo_of_a_feature_that_is_switched_off_is_left_out() -> None:
    chosen, left_out = demos.load_all(demos.names(), machine(show.PROFILE), (1, 35))
    assert {demo.name for demo in chosen} == {
        *(
            "gpu-with-nic",
            "mig",
            "mig-four-on-one",
            "mig-mps",
            "mps",
            "one-claim-four-pods",
            "shared-gpu",
        ),
        *("time-slicing", "time-slicing-and-mps"),
    }
    assert (
        left_out["sick-gpu"]
        == "it needs DRADeviceTaints, ResourceHealthStatus, switched off in Kubernetes 1.35"
    )


def test_an_unknown_kubernetes_names_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["--kubernetes", "1.20"]) == 1
    assert "Kubernetes 1.20 is not known here; choose one of 1.37." in capsys.readouterr().out


def test_resource_names_go_by_the_card_too() -> None:
    demo = demos.load("mig-extended-resource", machine("a100x8"))
    things = list(yaml.safe_load_all(demo.text))
    classes = {
        thing["metadata"]["name"]: thing["spec"]["extendedResourceName"]
        for thing in things
        if thing["kind"] == "DeviceClass"
    }
    assert classes == {
        "mig-1g.5gb.resource.nvidia.com": "nvidia.com/mig-1g.5gb",
        "mig-3g.20gb.resource.nvidia.com": "nvidia.com/mig-3g.20gb",
    }
    (pod1,) = (one for one in things if one["metadata"]["name"] == "pod1")
    (container,) = pod1["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/mig-1g.5gb": 1}


def test_a_share_config_goes_by_the_card_too() -> None:
    demo = demos.load("shares-mig", machine("a100x8"))
    config = yaml.safe_load(demo.share_config)
    (resource,) = config["sharing"]["timeSlicing"]["resources"]
    assert resource["name"] == "nvidia.com/mig-1g.5gb"
    assert (demo.made, demo.fit.divided) == (("1g.5gb",), demo.fit.switched)
    assert demos.load("whole-gpu", machine("a100x8")).share_config == ""


@pytest.mark.parametrize("path", sorted(demos.FOLDER.glob("*/share-config.yaml")))
def test_the_share_config_of_a_demo_is_right(path: Path) -> None:
    config = read_node_config(path.read_bytes(), path.name)
    asked = (path.parent / "demo.yaml").read_text()
    assert config.resources
    assert all(f"{resource.served_as}: " in asked for resource in config.resources)


def test_the_pods_of_a_deployment_are_counted() -> None:
    demo = demos.load("shares-replicas", machine("h100x8"))
    assert demo.deployments() == {"inference": 4}
    assert demo.pods() == tuple(f"inference-{number}" for number in range(4))
    assert demo.values_of("runtimeClassName") == {"nvidia"}


def test_a_card_that_takes_no_reset_is_divided_first() -> None:
    fitted = demos.load("mig", machine("generations")).fit
    assert (fitted.card, fitted.by_reset) == ("NVIDIA H100 80GB HBM3", False)
    assert dict(fitted.names) == {"1g.10gb": "1g.10gb", "3g.40gb": "3g.40gb"}


@pytest.mark.parametrize("name", demos.names())
def test_a_demo_says_what_it_takes(name: str) -> None:
    assert demos.profiles_for(name)
    entry = yaml.safe_load((demos.FOLDER / name / "expect.yaml").read_text())["needs"]
    known = {"gpus", "mig", "product", "computeCapability", "timeSlices", "features", "nics"}
    assert set(entry) <= known
    assert parse_needs(entry) != Needs()
    assert {"gpus", "mig"} & {*entry}


def test_nothing_but_the_names_of_mig_profiles_is_changed() -> None:
    text = "image: nvidia/cuda:12.4.1-base\nlimit: 10Gi # 1g.10gb+me"
    fitted = fit(Needs(divided=1, names_of="h100-80gb"), text, machine("a100x8"))
    assert fitted.names == {"1g.10gb": "1g.5gb"}
    assert fitted.adapted(text) == text.replace("1g.10gb+me", "1g.5gb+me")


def test_a_user_without_root_is_told_the_whole_command() -> None:
    words = ["--demo", "mig", "--profile", "h200x8", "--kubernetes", "1.36", "--keep"]
    command = show.typed(show.options_of(words))
    assert command == "make demo DEMO=mig PROFILE=h200x8 KUBERNETES=1.36 KEEP=1"
    assert show.typed(show.options_of([])) == "make demo"
