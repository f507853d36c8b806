"""Paths of the driver's sockets."""

from pathlib import Path

import pytest

from dra_driver.errors import SetupError
from dra_driver.kubelet.sockets import MAX_SOCKET_PATH_BYTES, SocketPaths, socket_paths

KUBELET = Path("/var/lib/kubelet")
POD_UID = "7f1c8b5e-2f4d-4f4b-9c47-0c6b0f0f3c21"


def paths(root: Path = KUBELET, pod_uid: str = "") -> SocketPaths:
    return socket_paths(
        plugins=root / "plugins", registrar=root / "plugins_registry", pod_uid=pod_uid
    )


def root_for_registration_bytes(size: int, name: str) -> Path:
    fixed = len(f"/plugins_registry/{name}")
    return Path("/" + "k" * (size - fixed - 1))


def test_the_default_paths_are_those_that_kubernetes_uses() -> None:
    found = paths()
    assert found.data_directory == KUBELET / "plugins/gpu.nvidia.com"
    assert found.service == KUBELET / "plugins/gpu.nvidia.com/dra.sock"
    assert found.registration == KUBELET / "plugins_registry/gpu.nvidia.com-reg.sock"


def test_a_pod_uid_gives_each_instance_sockets_of_its_own() -> None:
    found = paths(pod_uid=POD_UID)
    assert found.service.name == f"dra-{POD_UID}.sock"
    assert found.registration.name == f"gpu.nvidia.com-{POD_UID}-reg.sock"


def test_a_path_may_have_just_as_many_bytes_as_the_kernel_takes() -> None:
    root = root_for_registration_bytes(MAX_SOCKET_PATH_BYTES, "gpu.nvidia.com-reg.sock")
    assert len(str(paths(root).registration)) == 107


def test_a_path_of_one_byte_more_is_refused_and_says_which_setting_to_change() -> None:
    root = root_for_registration_bytes(MAX_SOCKET_PATH_BYTES + 1, "gpu.nvidia.com-reg.sock")
    with pytest.raises(SetupError, match=r"108 bytes.*up to 107.*registrar-directory-path"):
        paths(root)


@pytest.mark.parametrize("root", ["kubelet", "//kubelet", "/a%2e", "/a?b", "/a#b", "/a\n"])
def test_a_path_that_newer_kubelets_refuse_is_refused(root: str) -> None:
    with pytest.raises(SetupError, match=r"without %, # and \?; set --kubelet"):
        paths(Path(root))
    assert paths(Path("/var/lib/ä b~+"))


def test_on_microk8s_two_instances_have_service_sockets_of_their_own() -> None:
    root = Path("/var/snap/microk8s/common/var/lib/kubelet")
    one, other = (paths(root, uid).service for uid in (POD_UID, POD_UID[::-1]))
    assert one != other
    assert all(len(str(path)) <= MAX_SOCKET_PATH_BYTES for path in (one, other))
    assert all(path.match("gpu.nvidia.com/dra*.sock") for path in (one, other))


def test_a_long_root_makes_rolling_update_names_shorter() -> None:
    # sha256 of the UID, cut to 8 bytes, base64url without padding: 11 characters.
    root = root_for_registration_bytes(MAX_SOCKET_PATH_BYTES, f"gpu.nvidia.com-{'x' * 11}-reg.sock")
    registrar = root / "plugins_registry"
    found = socket_paths(plugins=Path("/p"), registrar=registrar, pod_uid=POD_UID).registration
    assert found.name.startswith("gpu.nvidia.com-")
    assert len(found.name) == len("gpu.nvidia.com--reg.sock") + 11
