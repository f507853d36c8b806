"""The rules of a CDI spec, apart from the code under test: of SPEC.md and of its Go loader.

A loader drops the whole file for one entry that breaks a rule. hack/cluster/go/cdi asks the loader.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

FIELDS = {
    "spec": {"cdiVersion", "kind", "devices", "containerEdits"},
    "device": {"name", "containerEdits"},
    "edits": {"env", "deviceNodes", "mounts", "hooks", "additionalGids"},
    "deviceNodes": {
        *("path", "hostPath", "type", "major", "minor"),
        *("fileMode", "permissions", "gid"),
    },
    "mounts": {"hostPath", "containerPath", "options"},
    "hooks": {"hookName", "path", "args", "env"},
}
LARGEST = {"major": 2**63, "minor": 2**63, "fileMode": 2**32, "gid": 2**32}

Json = Mapping[str, Any]


def judge(document: Json) -> None:
    """Apply the rules to a spec, as JSON gives it."""
    assert set(document) <= FIELDS["spec"]
    assert re.fullmatch(r"[A-Za-z][\w.-]*[A-Za-z0-9]/[A-Za-z][\w.-]*[A-Za-z0-9]", document["kind"])
    devices = document["devices"]
    assert isinstance(devices, list)
    assert devices
    names = [device["name"] for device in devices]
    assert len(set(names)) == len(names)
    for device in devices:
        assert set(device) == FIELDS["device"]
        assert re.fullmatch(r"[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?", device["name"], re.ASCII)
        assert device["containerEdits"]
        _judge_edits(device["containerEdits"])
    _judge_edits(document.get("containerEdits", {}))
    assert document["cdiVersion"] == lowest_version(document)


def _judge_edits(edits: Json) -> None:
    assert set(edits) <= FIELDS["edits"]
    assert "\\u0000" not in json.dumps(edits)
    for kind in ("deviceNodes", "mounts", "hooks"):
        for entry in edits.get(kind, []):
            assert set(entry) <= FIELDS[kind]
            for field in ("path", "hostPath", "containerPath"):
                assert str(entry.get(field, "/")).startswith("/")
    for entry in (edits, *edits.get("hooks", [])):
        assert all(re.match(r"[^=]+=", one, re.DOTALL) for one in entry.get("env", []))
    for mount in edits.get("mounts", []):
        assert {"hostPath", "containerPath"} <= set(mount)
    for node in edits.get("deviceNodes", []):
        assert node.get("type", "c") in {"b", "c", "u", "p"}
        assert set(str(node.get("permissions", ""))) <= set("rwm")
        assert all(0 <= node.get(field, 0) < most for field, most in LARGEST.items())
    for gid in edits.get("additionalGids", []):
        assert 0 < gid < 2**32


def lowest_version(document: Json) -> str:
    text = json.dumps(document)
    if '"additionalGids"' in text:
        return "0.7.0"
    nodes = [
        node
        for part in (document, *document["devices"])
        for node in part.get("containerEdits", {}).get("deviceNodes", [])
    ]
    if any("hostPath" in node for node in nodes):
        return "0.5.0"
    names = [device["name"] for device in document["devices"]]
    return "0.5.0" if any(name[0].isdigit() for name in names) else "0.3.0"
