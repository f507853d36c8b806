"""The rooms that must not break: their modules, and the tests that may notice a fault in them.

Unit tests, property tests, and contract tests that are fast. What starts processes to kill them is
not here: a fault is seen in this process alone, and such a test takes seconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Modules and tests, as glob patterns below the repository."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Of the tests, those that take too long."""


_CLAIMS = (
    "tests/unit/claims/test_*.py",
    "tests/unit/test_kept_files.py",
    "tests/property/test_*claims.py",
    "tests/property/test_records.py",
    "tests/property/test_fuzz_records.py",
    "tests/property/test_resharing.py",
    "tests/property/test_device_metadata.py",
    "tests/contract/claims/test_*.py",
    "tests/contract/sharing/test_consumable_shares.py",
    "tests/contract/sharing/test_shares.py",
    "tests/contract/sharing/test_mps.py",
)
_LONG = (
    "tests/**/test_*crash.py",
    "tests/contract/claims/test_claim_status*.py",
    "tests/contract/claims/test_metadata_readers.py",
    "tests/contract/claims/test_hung_mig.py",
    "tests/contract/claims/test_takeover*.py",
    "tests/unit/claims/test_claim_status.py",
    "tests/property/test_fuzz_kernel.py",
)

ROOMS = {
    "claims/prepare": Room(
        sources=("dra_driver/claims/prepare/*.py",), tests=_CLAIMS, without=_LONG
    ),
    "claims/state": Room(sources=("dra_driver/claims/state/*.py",), tests=_CLAIMS, without=_LONG),
    "slices": Room(
        # What only computes; publication and publisher talk to the API server.
        sources=(
            "dra_driver/slices/*.py",
            "dra_driver/slices/offer/*.py",
            "dra_driver/slices/publish/writes.py",
        ),
        tests=(
            "tests/unit/slices/test_*.py",
            "tests/unit/test_device_kinds.py",
            "tests/property/test_slices.py",
            "tests/property/test_counters.py",
            "tests/property/test_mig.py",
            "tests/property/test_nvlink.py",
            "tests/property/test_names.py",
            "tests/property/test_consumable_shares.py",
            "tests/contract/slices/test_node_offer.py",
            "tests/contract/slices/test_publisher.py",
            "tests/contract/slices/test_publisher_failures.py",
            "tests/contract/slices/test_taken_names.py",
        ),
    ),
    "sharing": Room(
        sources=("dra_driver/sharing/*.py",),
        tests=(
            "tests/unit/sharing/test_*.py",
            "tests/unit/claims/test_share_records.py",
            "tests/property/test_*limits.py",
            "tests/property/test_share*.py",
            "tests/property/test_consumable_shares.py",
            "tests/contract/sharing/test_mps.py",
            "tests/contract/sharing/test_shares.py",
            "tests/contract/sharing/test_time_slicing.py",
            "tests/contract/memory_limits/test_limited_*.py",
            "tests/contract/memory_limits/test_lost_limits.py",
            "tests/contract/memory_limits/test_memory_watch.py",
        ),
    ),
    "shares": Room(
        sources=("dra_driver/shares/*.py",),
        tests=(
            "tests/unit/shares/test_*.py",
            "tests/unit/slices/test_project_shares.py",
            "tests/unit/test_node_shares.py",
            "tests/property/test_shares.py",
            "tests/property/test_fuzz_share_configs.py",
            "tests/contract/shares/test_*.py",
        ),
    ),
    "cdi/spec": Room(
        sources=("dra_driver/cdi/spec.py",),
        tests=(
            "tests/unit/cdi/test_*.py",
            "tests/property/test_cdi.py",
            "tests/property/test_fuzz_cdi.py",
            "tests/contract/cdi/test_*.py",
            "tests/contract/claims/test_prepare.py",
        ),
    ),
    "mps/supervisor": Room(
        sources=("dra_driver/mps/supervisor/lifecycle.py",),
        tests=(
            "tests/unit/mps/test_record.py",
            "tests/contract/mps/test_lifecycle*.py",
            "tests/contract/mps/test_supervisor.py",
            "tests/contract/mps/test_supervisor_disk.py",
            "tests/contract/mps/test_faults.py",
            "tests/contract/mps/test_lost_records.py",
            "tests/contract/mps/test_nvml_let_go.py",
            "tests/contract/mps/test_shared_domains.py",
        ),
    ),
    "devices/health": Room(
        sources=("dra_driver/devices/health/findings.py", "dra_driver/devices/health/debounce.py"),
        tests=(
            "tests/unit/health/test_*.py",
            "tests/unit/test_node_health.py",
            "tests/unit/docs/test_health_page.py",
            "tests/unit/slices/test_taints.py",
            "tests/property/test_health.py",
            "tests/contract/devices/test_health.py",
        ),
    ),
}

_OF_SEMANTIC_FAULTS = {
    "claims/model": Room(sources=("dra_driver/claims/model/*.py",), tests=_CLAIMS, without=_LONG),
    "claims/reconcile": Room(
        sources=("dra_driver/claims/reconcile/*.py",),
        tests=(
            "tests/contract/claims/test_reconcile.py",
            "tests/contract/claims/test_orphans.py",
            "tests/contract/claims/test_api_server.py",
            "tests/contract/claims/test_hopeless.py",
            "tests/contract/claims/test_takeover.py",
        ),
    ),
    "claims/takeover": Room(
        sources=("dra_driver/claims/takeover/*.py",),
        tests=(
            "tests/unit/claims/test_nvidia_checkpoint.py",
            "tests/unit/test_node_exclusion.py",
            "tests/property/test_fuzz_nvidia_checkpoint.py",
            "tests/contract/claims/test_takeover*.py",
        ),
    ),
    "claims/report": Room(
        sources=("dra_driver/claims/report/*.py",),
        tests=(
            "tests/unit/claims/test_claim_status.py",
            "tests/unit/claims/test_device_health.py",
            "tests/unit/claims/test_news.py",
            "tests/unit/test_node_health.py",
            "tests/property/test_claim_status.py",
            "tests/contract/claims/test_claim_status*.py",
            "tests/contract/claims/test_mps_events.py",
            "tests/contract/sharing/test_unlimited_memory.py",
        ),
    ),
    "claims/memory": Room(
        sources=("dra_driver/claims/memory/*.py",),
        tests=("tests/unit/claims/test_pod_groups.py", "tests/contract/memory_limits/test_*.py"),
    ),
    "slices/publish": Room(
        sources=("dra_driver/slices/publish/*.py",),
        tests=("tests/unit/slices/test_*.py", "tests/contract/slices/test_*.py"),
    ),
    "kube": Room(
        sources=("dra_driver/kube/*.py",),
        tests=("tests/unit/kube/test_*.py", "tests/contract/kube/test_*.py"),
    ),
    "usage": Room(
        sources=("dra_driver/usage/*.py",),
        tests=(
            "tests/unit/usage/test_*.py",
            "tests/property/test_usage_*.py",
            "tests/contract/usage/test_*.py",
        ),
    ),
    "kubelet": Room(
        sources=("dra_driver/kubelet/*.py",),
        tests=(
            "tests/unit/kubelet/test_*.py",
            "tests/property/test_fuzz_kubelet.py",
            "tests/contract/kubelet/test_*.py",
        ),
    ),
    "node": Room(
        sources=("dra_driver/node/*.py",),
        tests=("tests/unit/test_node_*.py", "tests/contract/devices/test_health.py"),
    ),
    "devices": Room(
        sources=("dra_driver/devices/*.py", "dra_driver/devices/health/*.py"),
        tests=(
            "tests/unit/devices/test_*.py",
            "tests/unit/health/test_*.py",
            "tests/unit/test_node_health.py",
            "tests/property/test_health.py",
        ),
    ),
    "devices/nvml": Room(
        sources=("dra_driver/devices/nvml/*.py",),
        tests=(
            "tests/unit/devices/test_*.py",
            "tests/property/test_fuzz_nvml.py",
            "tests/contract/devices/test_*.py",
        ),
    ),
    "devices/mig": Room(
        sources=("dra_driver/devices/mig/*.py",),
        tests=(
            "tests/unit/devices/test_*.py",
            "tests/property/test_mig*.py",
            "tests/contract/devices/test_simulated_mig.py",
            "tests/contract/claims/test_refused_mig.py",
        ),
    ),
    "mps": Room(
        sources=("dra_driver/mps/*.py", "dra_driver/mps/supervisor/*.py"),
        tests=(
            "tests/unit/mps/test_*.py",
            "tests/property/test_mps_domains.py",
            "tests/property/test_shared_domains.py",
            "tests/contract/mps/test_shared_domains.py",
            "tests/contract/mps/test_supervisor.py",
        ),
    ),
}

EVERY = ROOMS | _OF_SEMANTIC_FAULTS
"""With those of which only faults are tried that people wrote (written.py)."""
