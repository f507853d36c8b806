"""The composition root's own decisions; the whole of it runs in tests/contract/test_app.py."""

from pathlib import Path

from dra_driver.cdi.roots import roots_of
from dra_driver.node.settings import Settings


def settings(**given: object) -> Settings:
    return Settings(node_name="n", **given)  # type: ignore[arg-type]


def test_device_nodes_are_below_dev_of_the_dev_root(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    roots = roots_of(settings(nvidia_dev_root=tmp_path))
    assert (roots.dev, roots.dev_on_host) == (tmp_path / "dev", str(tmp_path / "dev"))


def test_the_driver_root_is_looked_at_where_this_process_has_it(tmp_path: Path) -> None:
    roots = roots_of(
        settings(nvidia_driver_root=Path("/run/nvidia/driver"), container_driver_root=tmp_path)
    )
    assert (roots.driver, roots.driver_on_host) == (tmp_path, "/run/nvidia/driver")
