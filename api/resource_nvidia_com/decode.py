"""Decodes opaque parameters into config models, strictly.

In: the JSON object under `opaque.parameters`, as a dict. Out: one of the models, chosen by
apiVersion and kind. Kubernetes checks nothing in there (resource.k8s.io/v1
OpaqueDeviceConfiguration), so all mistakes have to be found here (model.py). Importing this loads
pydantic, so a node does it only when it has to read a config.
"""

from collections.abc import Mapping
from types import MappingProxyType

from resource_nvidia_com.model import checked
from resource_nvidia_com.printable import either, shown
from resource_nvidia_com.problems import InvalidConfigError, Problem, check_duplicates, hint
from resource_nvidia_com.v1beta1.configs import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from resource_nvidia_com.v1beta1.names import API_VERSION

Config = GpuConfig | MigDeviceConfig | VfioDeviceConfig
"""Any config of this API group for GPUs."""

MODELS: Mapping[str, type[Config]] = MappingProxyType(
    {
        "GpuConfig": GpuConfig,
        "MigDeviceConfig": MigDeviceConfig,
        "VfioDeviceConfig": VfioDeviceConfig,
    }
)
"""The models by their kind."""


def decode(parameters: object) -> Config:
    """Return the config that a user wrote, fully checked. Raises InvalidConfigError."""
    check_duplicates(parameters)
    if not isinstance(parameters, Mapping):
        raise InvalidConfigError(
            [Problem(path=(), text="a config must be a JSON object with apiVersion and kind")]
        )
    return checked(_model(parameters), parameters)


def _model(parameters: Mapping[str, object]) -> type[Config]:
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version in (None, ""):
        raise _wrong("apiVersion", f'missing field "apiVersion": must be {API_VERSION}')
    if version != API_VERSION:
        raise _wrong("apiVersion", f"unknown apiVersion {shown(version)}: must be {API_VERSION}")
    allowed = f"must be {either(MODELS)}"
    if kind in (None, ""):
        raise _wrong("kind", f'missing field "kind": {allowed}')
    if not isinstance(kind, str):
        raise _wrong("kind", f"kind: {allowed}, not {shown(kind)}")
    if kind not in MODELS:
        raise _wrong("kind", f"unknown kind {shown(kind)}: {hint(kind, MODELS)}{allowed}")
    return MODELS[kind]


def _wrong(field: str, text: str) -> InvalidConfigError:
    return InvalidConfigError([Problem(path=(field,), text=text)])
