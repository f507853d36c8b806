from pathlib import Path

from dra_driver.usage.processes import ContainerName, container_names

ID = "ab" * 32


def test_names_are_those_that_the_kubelet_notes(tmp_path: Path) -> None:
    good = f"train-0.x_team-a_main-ctr-{ID}.log"
    for name in (good, "readme", f"a_b_c-{ID[1:]}.log", f"A_b_c-{'cd' * 32}.log", f"a_b-{ID}.log"):
        (tmp_path / name).symlink_to("/nowhere")
    assert container_names(tmp_path / "missing", tmp_path) == {
        ID: ContainerName(namespace="team-a", pod="train-0.x", name="main-ctr")
    }


def test_without_the_folder_nothing_is_known(tmp_path: Path) -> None:
    assert container_names(tmp_path / "missing") == {}
