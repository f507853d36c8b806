"""Objects that no cluster takes, and of which `validate` says more than it, and good ones.

The same table is held against `dra-driver validate` and a real API server.
"""

from dataclasses import dataclass

EXACTLY = "since resource.k8s.io/v1beta2 a request has its fields under `exactly`"
OLDER = "is for clusters older than Kubernetes 1.31, and nothing reads it now: write a claim or"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadObject:
    """Errors are (line, beginning of the text)."""

    name: str
    text: str
    errors: tuple[tuple[int, str], ...]


def _claim(devices: str, version: str = "v1") -> str:
    head = f"apiVersion: resource.k8s.io/{version}\nkind: ResourceClaim\nmetadata: {{name: c}}\n"
    return f"{head}spec:\n  devices:\n{devices}"


def _pod(spec: str) -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n{spec}"


REQUEST = "    requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]\n"

BAD_OBJECTS = (
    BadObject(
        name="parameters-of-the-first-driver",
        text=(
            "apiVersion: gpu.resource.nvidia.com/v1alpha1\nkind: GpuClaimParameters\n"
            "metadata: {name: p}\nspec: {count: 1}\n"
        ),
        errors=(
            (1, f"apiVersion: gpu.resource.nvidia.com/v1alpha1 with GpuClaimParameters {OLDER}"),
        ),
    ),
    BadObject(
        name="claim-of-v1alpha2",
        text=(
            "apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClaim\nmetadata: {name: c}\n"
            "spec:\n  resourceClassName: gpu.nvidia.com\n"
        ),
        errors=(
            (1, f"apiVersion: resource.k8s.io/v1alpha2 with ResourceClaim {OLDER}"),
            (5, 'spec: unknown field "resourceClassName": since resource.k8s.io/v1alpha3 a claim '),
        ),
    ),
    BadObject(
        name="resource-class",
        text=(
            "apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClass\nmetadata: {name: c}\n"
            "driverName: gpu.resource.nvidia.com\n"
        ),
        errors=((1, f"apiVersion: resource.k8s.io/v1alpha2 with ResourceClass {OLDER}"),),
    ),
    BadObject(
        name="claim-of-v1beta1",
        text=_claim(
            "    requests:\n    - name: gpu\n      deviceClassName: gpu.nvidia.com\n", "v1beta1"
        ),
        errors=(
            (1, "apiVersion: resource.k8s.io/v1beta1: Kubernetes 1.34 and newer serve it only "),
            (8, f'spec.devices.requests[0]: unknown field "deviceClassName": {EXACTLY}: write '),
        ),
    ),
    BadObject(
        name="flat-request-in-v1",
        text=_claim("    requests:\n    - name: gpu\n      deviceClassName: gpu.nvidia.com\n"),
        errors=(
            (8, f'spec.devices.requests[0]: unknown field "deviceClassName": {EXACTLY}: write '),
        ),
    ),
    BadObject(
        name="field-in-a-request-in-place-of-the-claim",
        text=_claim(
            "    requests:\n    - name: gpu\n      exactly: {deviceClassName: gpu.nvidia.com}\n"
            "      constraints: []\n"
        ),
        errors=(
            (
                9,
                'spec.devices.requests[0]: unknown field "constraints": it belongs under `devices',
            ),
        ),
    ),
    BadObject(
        name="claim-of-a-template-without-its-own-spec",
        text=_claim(REQUEST).replace("Claim\n", "ClaimTemplate\n"),
        errors=((5, 'spec: unknown field "devices": it belongs under spec.spec'),),
    ),
    BadObject(
        name="requests-that-lost-their-indentation",
        text=_claim(REQUEST.removeprefix("  ")),
        errors=((6, 'spec: unknown field "requests": it belongs under `devices`'),),
    ),
    BadObject(
        name="resource-name-as-class",
        text=_claim("    requests: [{name: gpu, exactly: {deviceClassName: nvidia.com/gpu}}]\n"),
        errors=((6, 'spec.devices.requests[0].exactly.deviceClassName: "nvidia.com/gpu" is a '),),
    ),
    BadObject(
        name="pod-claim-with-source",
        text=_pod(
            "  resourceClaims:\n  - name: gpu\n    source: {resourceClaimTemplateName: t}\n"
            "  containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}}]\n"
        ),
        errors=((7, 'spec.resourceClaims[0]: unknown field "source": write resourceClaimName or'),),
    ),
    BadObject(
        name="half-a-gpu",
        text=_pod(
            "  containers:\n  - name: c\n    image: i\n"
            "    resources: {limits: {nvidia.com/gpu: 500m}}\n"
        ),
        errors=(
            (8, "spec.containers[0].resources.limits: nvidia.com/gpu must be a whole number, not "),
        ),
    ),
    BadObject(
        name="data-twice",
        text=(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"
            'data:\n  a: "version: v1"\ndata:\n  b: "version: v1"\n'
        ),
        errors=((6, "data: this key is duplicated, and all but the last are dropped: keep only"),),
    ),
)

GOOD = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t, annotations: null, labels: {a: b}}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        firstAvailable:
        - {name: a, deviceClassName: gpu.nvidia.com, count: 2, allocationMode: ""}
        - {name: b, deviceClassName: nic.example.com, capacity: {requests: {memory: 10Gi}}}
      - name: other
        exactly:
          deviceClassName: gpu.nvidia.com
          allocationMode: All
          selectors:
          - cel: {expression: "device.driver == 'gpu.nvidia.com' && device.attributes[
              'gpu.nvidia.com'].resourceName == 'nvidia.com/gpu'"}
      constraints: [{requests: [gpu/a, other], matchAttribute: resource.kubernetes.io/pcieRoot}]
      config:
      - requests: [gpu]
        opaque: {driver: net.example.com, parameters: {any: {thing: [1]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: j}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      template:
        spec:
          resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]
          containers:
          - name: c
            image: i
            ports: [{containerPort: 80}]
            readinessProbe: {httpGet: {port: http}}
            resources:
              claims: [{name: gpu, request: other}]
              requests: {cpu: 1.5, memory: 1Gi, nvidia.com/gpu: 1}
              limits: {nvidia.com/gpu: "1", deviceclass.resource.kubernetes.io/gpu.nvidia.com: 1}
          restartPolicy: Never
---
apiVersion: resource.k8s.io/v1beta2
kind: DeviceTaintRule
metadata: {name: r}
---
apiVersion: example.com/v1
kind: DeviceClass
"""
