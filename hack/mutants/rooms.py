"""The rooms that must not break: their modules, and the tests that may notice a fault in them.

Unit tests, property tests, and contract tests that are fast. Tests that start processes to kill
them are left out: the fault is only in this process, and such a test takes seconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Modules and tests, as glob patterns below the repository."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    """The tests that take too long."""


def _room(sources: str, tests: str, without: str = "") -> Room:
    """Return a room of modules of dra_driver/ and of tests: `tests/a/test_b.py` is `a/b`."""
    return Room(
        sources=tuple(f"dra_driver/{name}.py" for name in sources.split()),
        tests=_tests(tests),
        without=_tests(without),
    )


def _tests(names: str) -> tuple[str, ...]:
    parts = (name.rpartition("/") for name in names.split())
    return tuple(f"tests/{folder}/test_{name}.py" for folder, _, name in parts)


_CLAIMS = (
    "unit/claims/* property/*claims property/records property/fuzz_records "
    "property/resharing property/device_metadata contract/claims/* "
    "contract/sharing/consumable_shares contract/sharing/shares contract/sharing/mps"
)
_LONG = (
    "**/*crash contract/claims/claim_status* "
    "contract/claims/hung_mig contract/claims/takeover* unit/claims/claim_status "
    "property/fuzz_kernel"
)

ROOMS = {
    "claims/prepare": _room("claims/prepare/*", _CLAIMS, _LONG),
    "claims/state": _room("claims/state/*", _CLAIMS, _LONG),
    # Of slices only code that computes; publication and publisher talk to the API server.
    "slices": _room(
        "slices/* slices/offer/* slices/publish/writes",
        "unit/slices/* unit/device_kinds property/slices property/counters property/mig "
        "property/nvlink property/names property/consumable_shares contract/slices/node_offer "
        "contract/slices/publisher contract/slices/publisher_failures contract/slices/taken_names",
    ),
    "sharing": _room(
        "sharing/*",
        "unit/sharing/* unit/claims/share_records property/*limits property/share* "
        "property/consumable_shares contract/sharing/mps contract/sharing/shares "
        "contract/sharing/time_slicing contract/memory_limits/limited_* "
        "contract/memory_limits/lost_limits contract/memory_limits/memory_watch "
        "contract/claims/pod_limits",
    ),
    "shares": _room(
        "shares/*",
        "unit/shares/* unit/slices/project_shares unit/node_shares property/shares "
        "property/fuzz_share_configs contract/shares/*",
    ),
    "cdi/spec": _room(
        "cdi/spec",
        "unit/cdi/* property/cdi property/fuzz_cdi contract/cdi/* contract/claims/prepare",
    ),
    "mps/supervisor": _room(
        "mps/supervisor/lifecycle",
        "unit/mps/record contract/mps/lifecycle* contract/mps/supervisor "
        "contract/mps/supervisor_disk contract/mps/faults contract/mps/lost_records "
        "contract/mps/nvml_let_go contract/mps/shared_domains",
    ),
    "devices/health": _room(
        "devices/health/findings devices/health/debounce",
        "unit/health/* unit/node_health unit/docs/health_page unit/slices/taints property/health "
        "contract/devices/health",
    ),
}

_OF_SEMANTIC_FAULTS = {
    "claims/model": _room("claims/model/*", _CLAIMS, _LONG),
    "claims/reconcile": _room(
        "claims/reconcile/*",
        "contract/claims/reconcile contract/claims/orphans contract/claims/api_server "
        "contract/claims/hopeless contract/claims/takeover",
    ),
    "claims/takeover": _room(
        "claims/takeover/*",
        "unit/claims/nvidia_checkpoint unit/node_exclusion property/fuzz_nvidia_checkpoint "
        "contract/claims/takeover*",
    ),
    "claims/report": _room(
        "claims/report/*",
        "unit/claims/claim_status unit/claims/device_health unit/claims/news unit/claims/later "
        "unit/node_health property/claim_status contract/claims/claim_status* "
        "contract/claims/mps_events contract/sharing/unlimited_memory",
    ),
    "claims/memory": _room("claims/memory/*", "unit/claims/pod_groups contract/memory_limits/*"),
    "slices/publish": _room("slices/publish/*", "unit/slices/* contract/slices/*"),
    "kube": _room("kube/*", "unit/kube/* contract/kube/*"),
    "usage": _room("usage/*", "unit/usage/* property/usage_* contract/usage/*"),
    "kubelet": _room("kubelet/*", "unit/kubelet/* property/fuzz_kubelet contract/kubelet/*"),
    "node": _room("node/*", "unit/node_* contract/devices/health"),
    "devices": _room(
        "devices/* devices/health/* devices/passthrough/*",
        "unit/devices/* unit/health/* unit/node_health property/health",
    ),
    "devices/nvml": _room("devices/nvml/*", "unit/devices/* property/fuzz_nvml contract/devices/*"),
    "devices/mig": _room(
        "devices/mig/*",
        "unit/devices/* property/mig* contract/devices/simulated_mig contract/claims/refused_mig",
    ),
    "mps": _room(
        "mps/* mps/supervisor/*",
        "unit/mps/* property/mps_domains property/shared_domains contract/mps/shared_domains "
        "contract/mps/supervisor",
    ),
}

EVERY = ROOMS | _OF_SEMANTIC_FAULTS
"""Also the rooms in which only faults that people wrote are tried (written.py)."""
