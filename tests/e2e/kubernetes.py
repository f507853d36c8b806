"""Which Kubernetes the end-to-end tests run on, and what it lacks.

E2E_KUBERNETES is the version, from 1.34 to 1.38; unset, the one that hack/cluster chooses.
E2E_CONTAINERD is the version of its containerd, 2 or 1.7; with E2E_RUNTIME=crio it has CRI-O
instead. With E2E_OCI=crun either calls crun instead of runc. E2E_FEATURE_GATES switches features
on or off, as `NAME=true,NAME=false`, in every component.
A test that needs a feature is marked with it; where it is lacking the test is skipped, and
test_doctor.py sees on the cluster itself that it is.
"""

import hashlib
import os
from typing import TypeVar

import pytest
from testbed.cluster import Cluster

from dra_driver.admin.doctor.checks.cluster_checks import ALL_FEATURES_ON
from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.slices.offer.mig import CHEAP_COUNTERS, has_cheap_counters

KUBERNETES = os.environ.get("E2E_KUBERNETES", "")
CONTAINERD = os.environ.get("E2E_CONTAINERD", "")
RUNTIME = os.environ.get("E2E_RUNTIME", "")
OCI = os.environ.get("E2E_OCI", "")
FEATURE_GATES = os.environ.get("E2E_FEATURE_GATES", "")

C = TypeVar("C", bound=Cluster)


def cluster_of(
    name: str, *, runtime: str = RUNTIME, for_pods: bool = False, kind: type[C] = Cluster
) -> C:
    """Return a cluster, not up yet, of the Kubernetes that these tests run on."""
    # With that gate the scheduler waits for DeviceTaintRules, whose API is off where the gate is.
    needs_rules = is_on(Feature.TAINTS) and _minor() < ALL_FEATURES_ON
    rules = "kube-apiserver:--runtime-config=resource.k8s.io/v1alpha3=true"
    return kind(
        name,
        KUBERNETES,
        (rules,) if needs_rules else (),
        containerd=CONTAINERD,
        runtime=runtime,
        oci=OCI,
        feature_gates=FEATURE_GATES,
        for_pods=for_pods,
    )


def cluster_of_pods(letter: str, kind: type[C] = Cluster) -> C:
    """Return a cluster for a driver in a pod, named after this run's and by a letter of its own."""
    # With a pod's UID in it the driver's socket leaves nine bytes for the cluster's name.
    run = hashlib.sha256(os.environ.get("E2E_CLUSTER", "e2e").encode()).hexdigest()
    return cluster_of(f"{letter}{run[:7]}", for_pods=True, kind=kind)


def is_on(gate: str) -> bool:
    """Tell whether a feature that is on as of the first version with all of them is on here."""
    gates = dict(word.split("=") for word in FEATURE_GATES.split(",") if word)
    return gates.get(gate, str(_minor() >= ALL_FEATURES_ON).lower()) == "true"


def counters_are_cheap() -> bool:
    """Tell whether the driver by its default offers what takes counters here.

    These are MIG devices that it makes on GPUs in MIG mode, and whole GPUs beside their shares.
    """
    return has_cheap_counters(_minor())


def makes_mig_by_default() -> pytest.MarkDecorator:
    """Mark a test with what it needs: a driver that makes MIG devices without being told to."""
    reason = f"Kubernetes {KUBERNETES} makes no MIG devices by default"
    return pytest.mark.skipif(not counters_are_cheap(), reason=reason)


def _minor() -> tuple[int, int]:
    # What hack/cluster chooses is no older than that.
    major, _, minor = KUBERNETES.partition(".")
    return (int(major), int(minor.partition(".")[0])) if KUBERNETES else CHEAP_COUNTERS


def lacking() -> frozenset[Feature]:
    """Return the features that the API server of these tests does not have."""
    return frozenset(one for one in Feature if not is_on(one))


def needs(*features: Feature | str) -> pytest.MarkDecorator:
    """Mark a test, or a module's tests, with what it needs of Kubernetes."""
    return pytest.mark.feature(*features)


def skip_if_lacking(item: pytest.Item) -> None:
    """Skip a test whose Kubernetes lacks what the test needs."""
    for marker in item.iter_markers("feature"):
        for feature in marker.args:
            if not is_on(feature):
                pytest.skip(f"Kubernetes {KUBERNETES or 'here'} has {feature} switched off")
