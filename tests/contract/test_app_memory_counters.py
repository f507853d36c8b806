"""The driver with `--memory-counters`, as a process: counters for quotas by memory."""

from pathlib import Path

from testbed.apiserver.rules import without_device_fields
from testbed.apiserver.server import ApiServer

from worlds.process import SLICES, ProcessNode, eventually


def start(node: ProcessNode, *words: str) -> None:
    node.install_gpus("t4x4")
    node.driver.start(*words)
    node.driver.wait_log("driver started")
    node.wait_devices(4)


def counter_sets(api: ApiServer) -> list[object]:
    slices = api.objects(SLICES)
    return [one for each in slices for one in each["spec"].get("sharedCounters", ())]


def test_where_the_api_server_stores_no_counters_gpus_are_published_without(
    tmp_path: Path, api: ApiServer
) -> None:
    api.store.rules.append(without_device_fields("consumesCounters"))
    node = ProcessNode(tmp_path, api)
    try:
        start(node, "--memory-counters")
        said = node.driver.wait_log("devices published without counters")
        assert "quotas by the counter memory admit nothing" in said["reason"]
        eventually(lambda: not counter_sets(api), "no counters")
    finally:
        node.driver.kill()
