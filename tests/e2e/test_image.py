"""The driver's image as it is built: what is in it, and that it runs as pods run it.

Built by hack/image and kept in its cache. Containers are runc's, with a read-only root and, where
nothing else is said, without capabilities and as a user that the image does not even know.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from image import archive
from image.archive import Image
from image.recipe import version
from testbed.containers import Containers, do
from testbed.machine import SimulatedMachine

pytestmark = pytest.mark.e2e

ANYBODY = 12345
UNWANTED = re.compile(
    r".*/(dra_driver[/_](bench|simulator)|pip|setuptools|ensurepip|tests?|\.git|\.cache)[/-].*"
    r"|.*bin/((.*-)?(gcc|cc|ld|cpp)(-\d+)?|make|git|apt(-get)?|dpkg|pip3?|curl|wget|su|sudo|mount|perl)"
)
"""What people look for who attack an image, and what makes it large."""
UNREACHABLE = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "me", "user": {"token": "none"}}],
}
MISSING_LIBRARIES = """
for file in "$@"; do
  /lib*/ld-linux-*.so.* --list "$file" >/dev/null || echo "$file"
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The image laid out in a folder, and runc."""

    root: Path
    image: Image
    runc: str
    folder: Path
    numbers: Iterator[int]

    def run(
        self,
        *words: str,
        user: int = ANYBODY,
        binds: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        opens_devices: bool = False,
    ) -> str:
        """Run a command to its end in a container; return what it printed, errors included.

        With `opens_devices` it may open any device node, as a privileged container may.
        """
        bundle = self.folder / str(next(self.numbers))
        bundle.mkdir()
        environment = [*self.image.config["Env"], *(f"{k}={v}" for k, v in (env or {}).items())]
        config = _config(self.root, environment, words, user, binds)
        if opens_devices:
            config["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        (bundle / "config.json").write_text(json.dumps(config))
        name = f"image-{os.getpid()}-{bundle.name}"
        # What it prints counts here, and not how it ends.
        shell = (
            f'"{self.runc}" --root "{self.folder}/runc" run --bundle "{bundle}" {name} 2>&1 || :'
        )
        return do("bash", "-c", shell)


@pytest.fixture(scope="session")
def place(
    image_archive: Path, containers: Containers, tmp_path_factory: pytest.TempPathFactory
) -> Place:
    (image,) = archive.read(image_archive)
    folder = tmp_path_factory.mktemp("image")
    root = folder / "root"
    root.mkdir(mode=0o755)
    archive.unpack(image, root)
    return Place(
        root=root, image=image, runc=containers.program("runc"), folder=folder, numbers=count()
    )


def _config(
    root: Path, env: list[str], words: Sequence[str], user: int, binds: Sequence[Path]
) -> dict[str, Any]:
    binds_at = [
        {"destination": str(bind), "type": "bind", "source": str(bind), "options": ["rbind"]}
        for bind in binds
    ]
    standard = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
    ]
    for bind in binds:
        (root / str(bind).lstrip("/")).mkdir(parents=True, exist_ok=True)
    return {
        "ociVersion": "1.2.0",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": user, "gid": user},
            "cwd": "/",
            "args": list(words),
            "env": env,
            "noNewPrivileges": True,
        },
        "mounts": [*standard, *binds_at],
        "linux": {
            "cgroupsPath": f"/dra-image-{os.getpid()}",
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
        },
    }


def test_nothing_is_in_the_image_that_should_not_be(place: Place) -> None:
    files = {path: member.info for path, member in place.image.members.items()}
    assert [path for path in files if UNWANTED.fullmatch(path)] == []
    own_rights = stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH
    assert [path for path, info in files.items() if info.isfile() and info.mode & own_rights] == []
    assert "NVIDIA_VISIBLE_DEVICES=void" in place.image.config["Env"]


def test_the_image_is_quick_to_download(place: Place) -> None:
    assert place.image.download < 45e6


def test_every_library_of_the_image_finds_those_that_it_needs(place: Place) -> None:
    libraries = [
        f"/{path}"
        for path, member in place.image.members.items()
        if ".so" in Path(path).name and member.content.startswith(b"\x7fELF")
    ]
    assert len(libraries) > 50
    assert place.run("/bin/bash", "-c", MISSING_LIBRARIES, "-", *libraries) == ""


def test_any_user_may_run_commands_on_a_read_only_root(place: Place) -> None:
    assert place.run("dra-driver", "--version") == f"dra-driver {version()}\n"
    listed = place.run("dra-driver", "--help")
    assert "kubelet-plugin" in listed
    assert "mps-supervisor" in listed
    assert "DeviceClass" in place.run("dra-driver", "classes", "nvidia.com/gpu")
    missing = "error: the simulator or a package that it needs is not installed: "
    assert place.run("dra-driver", "simulate").startswith(missing)


def test_no_byte_code_is_made_and_none_is_out_of_date(place: Place) -> None:
    said = place.run("python3", "-v", "-c", "import dra_driver.node.driver")
    compiled = [line for line in said.splitlines() if "code object from" in line]
    ours = [line for line in compiled if "/dra_driver/" in line]
    assert ours
    assert [line for line in compiled if "__pycache__" not in line] == []


def test_kubeconfigs_are_read_with_what_was_left_of_the_package(place: Place) -> None:
    said = place.run(
        *(
            "bash",
            "-c",
            'echo "$0" >/tmp/config; dra-driver status --cluster --kubeconfig /tmp/config',
        ),
        json.dumps(UNREACHABLE),
    )
    assert said.startswith("error: "), said
    assert "127.0.0.1" in said


def test_the_gpu_operators_daemon_set_finds_its_entry_point(place: Place) -> None:
    command = 'set -o pipefail; exec gpu-kubelet-plugin -v "${LOG_VERBOSITY}"'
    said = place.run("bash", "-c", command, env={"LOG_VERBOSITY": "4"})
    assert "--node-name (or NODE_NAME) is missing" in said


def test_nvml_and_the_drivers_programs_run_in_the_image(place: Place, tmp_path: Path) -> None:
    machine = SimulatedMachine(tmp_path / "root", "h100x8")
    machine.up()
    try:
        roots = {"NVIDIA_DRIVER_ROOT": str(machine.root), "DRIVER_ROOT_CTR_PATH": str(machine.root)}
        inspect = partial(
            place.run, "dra-driver", "inspect", user=0, binds=[machine.root], env=roots
        )
        assert "run the driver's container privileged" in inspect()
        shown = inspect(opens_devices=True)
        assert all(uuid in shown for uuid in machine.settings()), shown
        assert "would publish" in shown
    finally:
        machine.down()
