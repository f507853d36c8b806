"""Who asks for nothing gets nothing: containers without a claim run, and see no GPU.

The image says NVIDIA_VISIBLE_DEVICES=all, as CUDA images do; here no runtime of NVIDIA's reads it.
"""

import pytest
from testbed.pods import container

from e2e.scene import NAMESPACE, Scene

pytestmark = pytest.mark.e2e

LOOK = """
ls -R /dev | grep -i nvidia
grep -i -e nvidia -e libcuda /proc/1/mountinfo
env | grep -e '^CUDA_MPS' -e '^NVIDIA_CTK'
nvidia-smi -L && echo nvidia-smi works
true
"""

OPEN_GPU = """
mknod /tmp/gpu c 195 0 || exit 0
cat /tmp/gpu && exit 1
cat /tmp/gpu 2>&1 | grep -q 'Operation not permitted'
"""
"""Make the node of the first GPU by its numbers, and expect that it cannot be opened."""


def seen(scene: Scene, pod: str, ctr: str = "ctr") -> str:
    """All that a container sees of GPUs: nodes, mounts, variables, and a program that runs."""
    return scene.run_in(pod, "bash", "-c", f"({LOOK}) 2>/dev/null", ctr=ctr).strip()


def assert_nothing(scene: Scene, pod: str, ctr: str = "ctr") -> None:
    assert seen(scene, pod, ctr) == ""
    scene.run_in(pod, "bash", "-c", f"({OPEN_GPU}) 2>/dev/null", ctr=ctr)


def test_a_pod_without_a_claim_sees_no_gpu(scene: Scene) -> None:
    pod = scene.pod()
    scene.running(pod)
    assert_nothing(scene, pod)


def test_a_container_without_the_pods_claim_sees_no_gpu(scene: Scene) -> None:
    spec = {
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": scene.template()}],
        "containers": [container("with", {"claims": [{"name": "gpu"}]}), container("without", {})],
    }
    pod = scene.make("Pod", "pod", {"spec": spec})
    scene.running(pod)
    assert len(scene.gpus(pod, "with")) == 1
    assert "NVIDIA_CTK_LIBCUDA_DIR" in seen(scene, pod, "with")
    assert_nothing(scene, pod, "without")


def test_variables_of_an_image_or_a_pod_open_no_device(scene: Scene) -> None:
    greedy = container("ctr", {}) | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    pod = scene.make(
        "Pod", "greedy", {"spec": {"terminationGracePeriodSeconds": 1, "containers": [greedy]}}
    )
    scene.running(pod)
    assert_nothing(scene, pod)


def test_a_container_with_a_claim_cannot_ask_nvidias_runtime_for_more(scene: Scene) -> None:
    greedy = container("ctr", {"claims": [{"name": "gpu"}]}) | {
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": scene.template()}],
        "containers": [greedy],
    }
    pod = scene.make("Pod", "greedy", {"spec": spec})
    scene.running(pod)
    words = scene.run_in(pod, "cat", "/proc/1/environ").split("\0")
    assert [word for word in words if word.startswith("NVIDIA_VISIBLE_DEVICES=")] == [
        "NVIDIA_VISIBLE_DEVICES=void"
    ]
    assert len(scene.gpus(pod)) == 1
    assert scene.api.get("Pod", pod, NAMESPACE)["status"]["phase"] == "Running"
