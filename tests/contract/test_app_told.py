"""What a driver's whole life tells anybody: nothing of what it proves itself by, and times in UTC.

Its clock is set to a place on the other side of the world, as that of some nodes is.
"""

import base64
import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.kinds import KINDS
from testbed.kubelet import KubeletClient

from worlds.process import ProcessNode, eventually, process_node
from worlds.sick import KNOWS_NO_RECOVERY, machine_of, prepared, start, uuid_of

TOKEN, RENEWED, KEY = "token-f1c9e07b", "renewed-77b0c5e2", "key-5d20aa31"
TIMES = ("timeAdded", "lastTransitionTime", "eventTime", "timestamp")
AUCKLAND, ST_JOHNS = "NZST-12NZDT,M9.5.0,M4.1.0/3", "NST3:30NDT,M3.2.0,M11.1.0"
"""As POSIX has them: without a database of time zones they hold, too."""

node = process_node()


def times(told: object) -> Iterator[tuple[str, str]]:
    """All times in what was told, by the names of their fields."""
    if isinstance(told, dict):
        yield from ((key, value) for key, value in told.items() if key in TIMES)
    for one in told.values() if isinstance(told, dict) else told if isinstance(told, list) else ():
        yield from times(one)


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def texts(root: Path) -> Iterator[tuple[Path, bytes]]:
    """All files that the driver has written."""
    for path in (path for folder in ("p", "r", "cdi") for path in (root / folder).rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()


@pytest.mark.parametrize("zone", [AUCKLAND, ST_JOHNS], ids=["auckland", "st-johns"])
def test_it_tells_no_secret_and_all_times_in_utc(node: ProcessNode, zone: str) -> None:
    node.api.token = TOKEN
    file = node.root / "token"
    file.write_text(TOKEN)
    user = {"tokenFile": str(file), "client-key-data": base64_of(KEY)}
    node.api.write_kubeconfig(node.place.kubeconfig, **user)
    node.driver.env["TZ"] = zone
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    told: list[Any] = []
    begun = int(time.time())
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet)
        prepared(node, kubelet, one="gpu-1")
        machine.emit_xid(uuid_of(machine, 1), 79)
        eventually(lambda: node.taints() and node.api.objects("events"), "taint and event")
        # The token that it has is not good any more, and what is in the file is not yet.
        node.api.token = RENEWED
        two = node.allocate("two", "gpu-2")
        refused = kubelet.prepare(two)["uid-two"].error
        assert "401" in refused or "nauthorized" in refused
        told.append(refused)
        file.write_text(RENEWED)
        eventually(lambda: kubelet.prepare(two)["uid-two"].error == "", "a claim")

        def statuses() -> list[object]:
            return [one["status"].get("devices") for one in node.api.objects("resourceclaims")]

        eventually(lambda: all(statuses()), "status of claims")
    told += node.driver.events()
    told += [one for kind in KINDS for one in node.api.objects(kind.plural)]
    assert node.driver.stop() == 0
    ended = time.time()

    found = dict(times(told))
    assert found.keys() == set(TIMES)
    for field, each in times(told):
        assert begun <= datetime.fromisoformat(each).timestamp() <= ended, (field, each)
        assert each.endswith("Z")
    said = {"what was told": json.dumps(told).encode(), "its log": node.driver.log.read_bytes()}
    for secret in (TOKEN, RENEWED, KEY):
        for form in (secret, base64_of(secret)):
            for where, text in (*said.items(), *texts(node.root)):
                assert form.encode() not in text, where
