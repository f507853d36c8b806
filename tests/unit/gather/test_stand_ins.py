"""Stand-ins: the same for the same in all of an archive, and none where identities are kept."""

import pytest

from dra_driver.admin.gather.stand_ins import StandIns

GPU = "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"
MIG = "MIG-7f2d6b3c-1b6e-5d7b-9f7e-6f0f7a2d9c11"


@pytest.fixture
def stand_ins() -> StandIns:
    return StandIns(identify=False)


def test_a_uuid_has_one_stand_in_whatever_is_around_it(stand_ins: StandIns) -> None:
    first = stand_ins.of_facts({"a": GPU, "b": [MIG, GPU.upper().replace("GPU-", "")]})
    assert first["a"] == "GPU-00000000-0000-4000-8000-000000000001"
    assert first["b"] == [
        "MIG-00000000-0000-4000-8000-000000000002",
        "00000000-0000-4000-8000-000000000001",
    ]
    said = stand_ins.of_texts(f"gpu {GPU}: lost")
    assert said == "gpu GPU-00000000-0000-4000-8000-000000000001: lost"


def test_an_empty_uuid_stays_empty(stand_ins: StandIns) -> None:
    nobody = "00000000-0000-0000-0000-000000000000"
    assert stand_ins.of_facts([nobody, {"clusterUuid": "0" * 32}]) == [
        nobody,
        {"clusterUuid": "0" * 32},
    ]


def test_the_uuid_of_a_fabric_is_the_same_in_both_of_its_forms(stand_ins: StandIns) -> None:
    bare = "b5a1d2c3e4f5468a9b0c1d2e3f405162"
    dashed = "b5a1d2c3-e4f5-468a-9b0c-1d2e3f405162"
    found = stand_ins.of_facts({"clusterUuid": bare, "attribute": f"{dashed}.7"})
    assert found["attribute"] == "00000000-0000-4000-8000-000000000001.7"
    assert found["clusterUuid"] == "00000000000040008000000000000001"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dial 10.1.2.3:443 refused", "dial 192.0.2.1:443 refused"),
        ("at fd00:10::5 and fd00:10::5", "at 2001:db8::1 and 2001:db8::1"),
        ("pod train of team-a/train", "pod pod-1 of namespace-1/pod-1"),
        ("trainer is another word, so is re-train", "trainer is another word, so is re-train"),
        ("node worker-7 and worker-7.example.org", "node node-1 and node-2"),
        ("VBIOS 96.00.74.00.01 of driver 570.86.15", "VBIOS 96.00.74.00.01 of driver 570.86.15"),
        ("at 12:34:56 on 0000:1b:00.0", "at 12:34:56 on 0000:1b:00.0"),
        ("serial 1650523001234", "serial 0000000000001"),
    ],
)
def test_names_and_addresses_are_replaced_where_they_stand_by_themselves(
    text: str, expected: str, stand_ins: StandIns
) -> None:
    stand_ins.learn("pod", "train")
    stand_ins.learn("namespace", "team-a")
    stand_ins.learn("namespace", "default")
    stand_ins.learn("node", "worker-7")
    stand_ins.learn("node", "worker-7.example.org")
    stand_ins.learn_serial("1650523001234")
    assert stand_ins.of_texts(text) == expected


def test_the_programs_own_words_are_kept(stand_ins: StandIns) -> None:
    stand_ins.learn("pod", "prepared")
    line = {"event": "claim prepared", "level": "info", "reason": "claim prepared"}
    assert stand_ins.of_texts(line) == {**line, "reason": "claim pod-1"}


@pytest.mark.parametrize("identify", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2hunter2",
        "password=hunter2",
        'NGC_API_KEY: "hunter2"',
        "https://me:hunter2@example.org/x",
        "--token=hunter2",
        "aws_secret_access_key = hunter2",
        "eyJhbGciOiJSUzI1NiJ9.hunter2.hunter2",
    ],
)
def test_credentials_are_always_removed(text: str, *, identify: bool) -> None:
    assert "hunter2" not in StandIns(identify=identify).of_texts(f"failed: {text} was wrong")


def test_with_identify_everything_else_is_kept() -> None:
    stand_ins = StandIns(identify=True)
    stand_ins.learn("pod", "train")
    stand_ins.learn_serial("123")
    text = f"{GPU} 10.1.2.3 train 123"
    assert stand_ins.of_texts(text) == stand_ins.of_facts(text) == text
