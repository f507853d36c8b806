"""Share configs as files and labels come, go and break: a good one is never lost to a bad one."""

from pathlib import Path

from structlog.testing import capture_logs

from contract.shares.conftest import World, config, replicas_of
from dra_driver.shares.choice import LABEL
from dra_driver.shares.source import ShareConfigTiming
from resource_nvidia_com.device_plugin import NodeConfig, SharedBy
from worlds.process import eventually

NEVER = ShareConfigTiming(look=3600, settle=3600)


def mount(root: Path, **files: str) -> None:
    """Put files into a folder as the kubelet does: a new folder, then one link renamed."""
    number = len(list(root.glob("..v*")))
    (root / f"..v{number}").mkdir()
    for name, text in files.items():
        (root / f"..v{number}" / name).write_text(text)
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"..data/{name}")
    (root / "..data_tmp").symlink_to(f"..v{number}")
    (root / "..data_tmp").rename(root / "..data")


def replace(file: Path, text: str) -> None:
    """Write a file in one step, so that a running driver never reads it while it is empty."""
    staged = file.with_name(f".{file.name}")
    staged.write_text(text)
    staged.rename(file)


def test_without_a_path_nothing_is_shared_and_that_is_known(world: World) -> None:
    state = world.start(None).current()
    assert (state.config, state.is_known, state.problem) == (None, True, None)
    assert world.server.seen("watch", "nodes") == []


def test_a_file_is_read_without_asking_for_the_node(world: World) -> None:
    file = world.root / "config.yaml"
    file.write_text(config(4, "mps"))
    world.start(file)
    state = world.until_replicas(4)
    assert state.config is not None
    assert state.config.shared_by is SharedBy.MPS
    assert state.origin == f"file {file}"
    assert world.server.seen("list", "nodes") == []


def test_before_the_labels_are_known_no_config_is_chosen(world: World) -> None:
    mount(world.root, a=config(2))
    away = world.server.fail("list", "nodes", status=503, times=1000)
    world.start(world.root)
    eventually(lambda: world.server.seen("list", "nodes"), "the first list")
    assert (world.state().config, world.state().is_known) == (None, False)
    assert "labels are not known yet" in (world.state().problem or "")
    away.times = 0
    world.until_replicas(2)
    assert [state.is_known for state in world.changes] == [True]


def test_a_bad_file_at_the_start_is_not_an_empty_config(world: World) -> None:
    file = world.root / "config.yaml"
    file.write_text("version: v2\n")
    world.start(file)
    state = world.until_problem("must be v1")
    assert (state.config, state.is_known) == (None, False)
    file.write_text(config(2))
    assert world.until_replicas(2).is_known


def test_the_label_chooses_and_its_change_applies_at_once(world: World) -> None:
    mount(world.root, a=config(2), b=config(3), default=config(4))
    world.label("a")
    world.start(world.root, timing=NEVER)
    assert world.until_replicas(2).origin == f"file {world.root}/a (label {LABEL})"
    world.label("b")
    world.until_replicas(3)
    world.label(None)
    world.until_replicas(4)


def test_a_label_that_names_no_config_leaves_the_last_good_one(world: World) -> None:
    mount(world.root, a=config(2), b=config(3))
    world.label("a")
    world.start(world.root)
    world.until_replicas(2)
    world.label("c")
    state = world.until_problem('no config "c"')
    assert "it has a, b" in (state.problem or "")
    assert replicas_of(state) == (2,)
    mount(world.root, a=config(2), b=config(3), c=config(5))
    world.until_replicas(5)


def test_a_config_map_that_is_changed_is_read_again(world: World) -> None:
    mount(world.root, a=config(2))
    world.start(world.root)
    world.until_replicas(2)
    mount(world.root, a=config(6))
    world.until_replicas(6)
    assert [replicas_of(state) for state in world.changes] == [(2,), (6,)]


def test_a_file_that_is_damaged_leaves_the_last_good_config(world: World) -> None:
    file = world.root / "config.yaml"
    file.write_text(config(2))
    world.start(file)
    world.until_replicas(2)
    file.write_text(config(2).replace("replicas: 2", "replicas: many"))
    state = world.until_problem(f"{file}:6:7: sharing.timeSlicing.resources[0].replicas: must be")
    assert replicas_of(state) == (2,)
    file.write_text(config(2))
    world.until_replicas(2)


def test_a_file_that_vanishes_or_is_emptied_does_not_end_the_sharing(world: World) -> None:
    file = world.root / "config.yaml"
    file.write_text(config(2))
    world.start(file)
    world.until_replicas(2)
    file.unlink()
    assert replicas_of(world.until_problem(f"there is no {file}")) == (2,)
    file.write_text("\n")
    assert replicas_of(world.until_problem(f"{file} is empty: to share nothing")) == (2,)
    file.write_text("version: v1\n")
    assert world.until_replicas().config == NodeConfig()


def test_a_folder_that_is_emptied_does_not_end_the_sharing(world: World) -> None:
    (world.root / "a").write_text(config(2))
    world.start(world.root)
    world.until_replicas(2)
    (world.root / "a").unlink()
    assert replicas_of(world.until_problem(f"there is no {world.root}/a")) == (2,)


def test_a_label_that_is_removed_ends_the_sharing_where_no_default_is(world: World) -> None:
    mount(world.root, a=config(2), b=config(3))
    world.label("a")
    world.start(world.root)
    world.until_replicas(2)
    world.label(None)
    assert "it has a, b" in world.until_replicas().origin


def test_a_change_is_logged_and_reported_once(world: World) -> None:
    file = world.root / "config.yaml"
    file.write_text(config(2).replace("sharing:", "flags: {gdsEnabled: true}\nsharing:"))
    with capture_logs() as logs:
        world.start(file)
        world.until_replicas(2)
        replace(file, "version: v2\n")
        world.until_problem("must be v1")
        replace(file, "version: v3\n")
        world.until_problem('not "v3"')
    ours = [log for log in logs if log["event"].startswith("share config")]
    assert [(our["event"], our["log_level"]) for our in ours] == [
        ("share config taken", "info"),
        ("share config has no effect in part", "warning"),
        ("share config not used", "error"),
        ("share config not used", "error"),
    ]
    assert len(world.changes) == 3


def test_the_last_good_config_outlives_the_driver(world: World) -> None:
    file, kept = world.root / "config.yaml", world.root / "plugin" / "share-config.json"
    file.write_text(config(4, "mps"))
    world.start(file, kept=kept)
    world.until_replicas(4)
    world.stop()
    file.write_text("version: v2\n")
    world.start(file, kept=kept)
    state = world.until_problem("must be v1")
    assert (replicas_of(state), state.is_known) == ((4,), True)
    assert state.origin == f"file {file}"
    file.unlink()
    world.stop()
    kept.write_bytes(kept.read_bytes()[:-10])
    world.start(file, kept=kept)
    assert not world.until_problem("there is no").is_known


def test_an_unusable_config_is_one_event_on_the_node(world: World) -> None:
    file = world.root / "config.yaml"
    file.write_text(config(4))
    configs = world.start(file)
    world.until_replicas(4)
    assert configs.is_valid()
    replace(file, "version: v1\nsharing: [\n")
    world.until_problem("config.yaml:")
    assert not configs.is_valid()
    eventually(lambda: world.server.objects("events"), "the event")
    (event,) = world.server.objects("events")
    assert event["metadata"]["namespace"] == "default"
    assert (event["type"], event["reason"]) == ("Warning", "ShareConfigNotTaken")
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert event["note"].startswith(f"the share config cannot be used: {file}:3:1: ")
    assert event["note"].endswith(f"; file {file} is in use")
    assert event["reportingController"] == "gpu.nvidia.com/dra-driver"

    replace(file, config(4))
    world.until_replicas(4)
    assert configs.is_valid()
    assert len(world.server.objects("events")) == 1
