"""The chart as helm renders it, and where in its objects things stand."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from chart import CHART

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / CHART
PLATFORMS = sorted((FOLDER / "platforms").glob("*.yaml"))

Object = dict[str, Any]
Render = Callable[..., list[Object]]


def objects(helm: str, *words: object, release: str = "dra-driver") -> list[Object]:
    done = run(helm, "template", release, FOLDER, "--namespace", "gpus", *words)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if one]


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def of_kind(things: list[Object], kind: str) -> list[Object]:
    return [thing for thing in things if thing["kind"] == kind]


def daemon_set(things: list[Object], component: str) -> Object:
    found: Object
    (found,) = (
        one
        for one in of_kind(things, "DaemonSet")
        if one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    return found


def driver_pod(things: list[Object]) -> Object:
    spec: Object = daemon_set(things, "kubelet-plugin")["spec"]["template"]["spec"]
    return spec


def environment(pod: Object) -> dict[str, str]:
    (container,) = pod["containers"]
    return {one["name"]: one.get("value", "10.0.0.1") for one in container["env"]}


def host_paths(pod: Object) -> dict[str, str]:
    return {
        volume["name"]: volume["hostPath"]["path"]
        for volume in pod["volumes"]
        if "hostPath" in volume
    }
