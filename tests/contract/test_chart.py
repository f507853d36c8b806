"""The chart: what helm makes of it with the values that people give, and what it refuses."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml
from chart import CLEANUP, INSTALL, rendered

from charts import (
    FOLDER,
    PLATFORMS,
    REPOSITORY,
    Object,
    Render,
    daemon_set,
    driver_pod,
    environment,
    of_kind,
    run,
)
from commands import told, variables
from dra_driver.admin.cleanup import Cleanup
from dra_driver.admin.takeover.command import TakeOverCommand
from dra_driver.mps.supervisor.command import MpsSupervisor
from dra_driver.node.feature_gates import FEATURE_GATES
from dra_driver.node.settings import Settings

VALUES = (FOLDER / "values.yaml").read_text()
SCHEMA = json.loads((FOLDER / "values.schema.json").read_text())
EVERYTHING = Path(__file__).with_name("chart_values.yaml")
"""Values that turn on all there is."""

HEALTH_SETTINGS = (
    "taint_warning",
    "taint_fault",
    "taint_loss",
    "health_settle",
    "additional_xids_to_ignore",
)

CTR_ENV = "kubeletPlugin.containers.gpus.env[0]"
SCC = "SecurityContextConstraints"


@pytest.mark.parametrize(
    "values", [FOLDER / "values.yaml", EVERYTHING, *PLATFORMS], ids=lambda path: path.stem
)
def test_helm_finds_nothing_to_complain_of(helm: str, values: Path) -> None:
    done = run(helm, "lint", "--strict", FOLDER, "--values", values, "--namespace", "gpus")
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_a_packed_chart_differs_only_in_image_and_pages(helm: str, tmp_path: Path) -> None:
    image, pages = "registry.example.com/gpu/dra-driver", "https://example.com/blob/v1"
    env = os.environ | {"HELM": helm, "IMAGE": image, "PAGES": pages}
    subprocess.run([REPOSITORY / "hack/pack", tmp_path], check=True, env=env, capture_output=True)
    (packed,) = tmp_path.glob("dra-driver-*.tgz")
    wanted = yaml.safe_load(VALUES)
    wanted["image"]["repository"], wanted["prometheusRule"]["repository"] = image, pages
    assert yaml.safe_load(run(helm, "show", "values", packed).stdout) == wanted
    manifests = list((tmp_path / "assets").iterdir())
    assert {file.name for file in manifests} == {"install.yaml", "cleanup.yaml"}
    assert all(f"image: {image}:" in file.read_text() for file in manifests)


@pytest.mark.parametrize("path", [INSTALL, CLEANUP], ids=lambda path: path.stem)
def test_a_manifest_is_what_the_chart_says(helm: str, path: Path) -> None:
    assert (REPOSITORY / path).read_text() == rendered(helm, path), "run make generate"


def test_each_value_is_described_and_typed() -> None:
    schema = dict(leaves(SCHEMA))
    keys = list(described(yaml.compose(VALUES, yaml.SafeLoader), VALUES.splitlines()))
    assert sorted(schema) == sorted(keys)
    assert list(plain_leaves(yaml.safe_load(VALUES), keys)) == []


def described(values: yaml.Node, lines: list[str], above: str = "") -> Iterator[str]:
    """The keys with a comment on the line above them; what lies below such a key is its value."""
    for key, value in values.value:
        if lines[key.start_mark.line - 1].lstrip().startswith("#"):
            yield above + key.value
        elif isinstance(value, yaml.MappingNode):
            yield from described(value, lines, f"{above}{key.value}.")


def leaves(schema: Object, above: str = "") -> Iterator[tuple[str, Object]]:
    """What of the schema is no object with named keys. Objects with named keys are closed."""
    for name, one in schema["properties"].items():
        if "properties" in one:
            assert one["additionalProperties"] is False
            yield from leaves(one, f"{above}{name}.")
        else:
            yield above + name, one


def plain_leaves(values: Object, keys: list[str], above: str = "") -> Iterator[str]:
    """The keys of values that nothing describes."""
    for name, one in values.items():
        if above + name in keys:
            continue
        if isinstance(one, dict):
            yield from plain_leaves(one, keys, f"{above}{name}.")
        else:
            yield above + name


def test_a_feature_gate_without_effect_is_installed_and_the_notes_name_it(helm: str) -> None:
    words = ("--set", "featureGates.DynamicMIG=true,featureGates.Tomorrow=true")
    done = run(helm, "install", "a", FOLDER, "--dry-run=client", "--namespace", "gpus", *words)
    assert done.returncode == 0, done.stderr
    assert "value: DynamicMIG=true,Tomorrow=true" in done.stdout
    _, _, note = done.stdout.partition("FEATURE GATES WITHOUT EFFECT: Tomorrow. This driver heeds ")
    assert all(gate in note for gate in FEATURE_GATES)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("foo=1", "at '': additional properties 'foo' not allowed"),
        ("kubeletPlugin.image=x", "at '/kubeletPlugin': additional properties 'image' not allowed"),
        ("image.pullPolicy=Sometimes", "must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("nvidiaDriverRoot=run/nvidia", "at '/nvidiaDriverRoot': 'run/nvidia' does not match"),
        ("resources.computeDomains.enabled=true", "/computeDomains/enabled': value must be false"),
        ("featureGates.MPS-Support=true", "invalid propertyName 'MPS-Support'"),
        ("consumableShares=some", "at '/consumableShares'"),
        ("config.map.default.version=v1", "at '/config/map/default': got object, want string"),
        ("kubeletPlugin.containers.gpus.env[0].name=a b", "'a b' does not match pattern"),
        ("claimConfigsPolicy.validationActions={Allow}", "must be one of 'Deny', 'Warn', 'Audit'"),
        ("health.taintFault=Sometimes", "must be one of 'off', 'None', 'NoSchedule', 'NoExecute'"),
        ("health.ignoredXids={none}", "got string, want integer"),
        ("config.map.a=x,config.name=b", "config.map and config.name are both set: give"),
        ("usage.overLimit=end", "usage.overLimit: end needs usage.enabled: true"),
        ("config.map.a=x,config.default=b", "config.default names b, which config.map does not"),
        ("serviceAccount.create=false", "serviceAccount.name is empty: name the account"),
        ("namespaceOverride=default", "the namespace is `default`, where privileged pods have no"),
    ],
)
def test_wrong_values_are_refused_by_their_name(helm: str, words: str, complaint: str) -> None:
    done = run(helm, "template", "a", FOLDER, "--namespace", "gpus", "--set", words)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_a_cluster_that_is_too_old_is_refused(helm: str) -> None:
    words = ("--namespace", "gpus", "--kube-version", "1.33.4")
    done = run(helm, "template", "a", FOLDER, *words)
    assert done.returncode != 0
    assert "requires kubeVersion: >=1.34" in done.stderr


@pytest.mark.parametrize("component", ["kubelet-plugin", "mps-supervisor", "cleanup"])
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_by_default_pods_stay_on_nodes_that_only_pods_with_gpus_may_use(
    render: Render, component: str, effect: str
) -> None:
    """Such nodes have the taint nvidia.com/gpu, with one value or another."""
    things = render("--set", f"cleanup.enabled={str(component == 'cleanup').lower()}")
    pod = daemon_set(things, component)["spec"]["template"]["spec"]
    assert [
        toleration
        for toleration in pod["tolerations"]
        if (toleration["key"], toleration["operator"]) == ("nvidia.com/gpu", "Exists")
        and toleration.get("effect", effect) == effect
        and "tolerationSeconds" not in toleration
    ]


def test_values_of_nvidias_chart_are_accepted(render: Render) -> None:
    words = (
        "gpuResourcesEnabledOverride=true,resources.computeDomains.enabled=false",
        "nvidiaDriverRoot=/run/nvidia/driver,logVerbosity=6,image.pullPolicy=Always",
        "featureGates.TimeSlicingSettings=true,featureGates.DynamicMIG=false",
    )
    given = environment(driver_pod(render(*(part for word in words for part in ("--set", word)))))
    assert given["NVIDIA_DRIVER_ROOT"] == "/run/nvidia/driver"
    assert given["LOG_VERBOSITY"] == "6"
    assert given["FEATURE_GATES"] == "DynamicMIG=false,TimeSlicingSettings=true"


@pytest.mark.parametrize("component", ["kubelet-plugin", "mps-supervisor"])
def test_whatever_is_set_reaches_the_settings(render: Render, component: str) -> None:
    model = {"kubelet-plugin": Settings, "mps-supervisor": MpsSupervisor}[component]
    pod = daemon_set(render("--values", EVERYTHING), component)["spec"]["template"]["spec"]
    given = environment(pod)
    assert set(given) <= variables(model)
    settings = told(model, given | {"POD_UID": "0b8e6a5e"})
    if isinstance(settings, Settings):
        assert settings.exclude_gpus == "0,65:00.0,GPU-5c9e7a1b"


def test_every_part_names_the_same_account_in_any_release(render: Render) -> None:
    for words in ((), ("--set", "serviceAccount.name=other,namespaceOverride=elsewhere")):
        things = render(*words, release="mine")
        pod = daemon_set(things, "kubelet-plugin")
        account = pod["spec"]["template"]["spec"]["serviceAccountName"]
        namespace = pod["metadata"]["namespace"]
        made = [one["metadata"] for one in of_kind(things, "ServiceAccount")]
        assert (account, namespace) in [(one["name"], one["namespace"]) for one in made]
        (binding,) = of_kind(things, "ClusterRoleBinding")
        (role,) = of_kind(things, "ClusterRole")
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (account, namespace)
        assert binding["roleRef"]["name"] == role["metadata"]["name"] == "mine-dra-driver"
        policies = of_kind(things, "ValidatingAdmissionPolicy")
        user = f"'system:serviceaccount:{namespace}:{account}'"
        for suffix in ("-own-node", "-own-claims"):
            (own,) = (policy for policy in policies if policy["metadata"]["name"].endswith(suffix))
            (condition,) = own["spec"]["matchConditions"]
            assert f"request.userInfo.username == {user}" in condition["expression"]


def test_a_daemon_set_selects_its_own_pods_alone(render: Render) -> None:
    sets = of_kind(render("--values", EVERYTHING), "DaemonSet")
    assert len(sets) == 2
    for one, other in product(sets, sets):
        labels = other["spec"]["template"]["metadata"]["labels"].items()
        selects = one["spec"]["selector"]["matchLabels"].items() <= labels
        assert selects == (one is other)


def test_share_configs_come_from_a_file(render: Render, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = "version: v1\nsharing:\n  timeSlicing:\n    resources: []\n"
    file.write_text(text)
    words = ("--set-file", f"config.map.team={file}", "--set", "config.default=team")
    things = render(*words)
    (made,) = of_kind(things, "ConfigMap")
    assert made["data"] == {"team": text}
    pod = driver_pod(things)
    assert share_volume(pod) == {"name": made["metadata"]["name"], "optional": True}
    assert made["metadata"]["namespace"] == "gpus"
    assert environment(pod)["SHARE_CONFIG_DEFAULT"] == "team"


def share_volume(pod: Object) -> Object:
    found: Object
    (found,) = (volume["configMap"] for volume in pod["volumes"] if "configMap" in volume)
    return found


def test_an_update_starts_the_new_pod_first_and_each_has_sockets_of_its_own(render: Render) -> None:
    things = render()
    for one in of_kind(things, "DaemonSet"):
        rolling = one["spec"]["updateStrategy"]["rollingUpdate"]
        assert rolling == {"maxSurge": "10%", "maxUnavailable": 0}
    (container,) = driver_pod(things)["containers"]
    (uid,) = (one for one in container["env"] if one["name"] == "POD_UID")
    assert uid["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert not driver_pod(things).get("hostNetwork", False)  # two pods listen at the same ports


def test_a_disabled_supervisor_leaves_no_object(render: Render) -> None:
    things = render("--values", EVERYTHING, "--set", "mpsSupervisor.enabled=false")
    (one,) = of_kind(things, "DaemonSet")
    assert "mps-supervisor" not in json.dumps(things)
    assert one["metadata"]["name"] == "dra-driver"


def test_a_label_keeps_the_supervisor_to_nodes_that_want_mps(render: Render) -> None:
    things = render(
        *("--set-string", "mpsSupervisor.nodeSelector.nvidia\\.com/mps=true"),
        *("--set", "kubeletPlugin.nodeSelector.pool=gpus"),
    )
    supervisor = daemon_set(things, "mps-supervisor")["spec"]["template"]["spec"]
    assert supervisor["nodeSelector"] == {"nvidia.com/mps": "true", "pool": "gpus"}
    assert driver_pod(things)["nodeSelector"] == {"pool": "gpus"}


def test_network_policies_open_the_ports_for_metrics_and_no_other(render: Render) -> None:
    """Health checks are no exception: the kubelet's probes ask inside the pod."""
    things = render("--values", EVERYTHING)
    sets = {one["metadata"]["name"]: one["spec"] for one in of_kind(things, "DaemonSet")}
    policies = of_kind(things, "NetworkPolicy")
    assert {policy["metadata"]["name"] for policy in policies} == set(sets)
    for one in policies:
        pods = sets[one["metadata"]["name"]]
        assert one["spec"]["podSelector"]["matchLabels"] == pods["selector"]["matchLabels"]
        (container,) = pods["template"]["spec"]["containers"]
        opened = {port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]}
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert opened == {ports.pop("metrics")}
        assert ports == ({"health": 9091} if "kubelet-plugin" in container["name"] else {})
        assert [rule["from"] for rule in one["spec"]["ingress"]] == [[{"namespaceSelector": {}}]]
        # The supervisor calls nobody.
        ways = ["Ingress"] if "kubelet-plugin" in container["name"] else ["Ingress", "Egress"]
        assert (one["spec"]["policyTypes"], one["spec"].get("egress")) == (ways, None)


def test_openshift_allows_what_the_pods_ask_for(render: Render) -> None:
    things = render("--values", FOLDER / "platforms" / "openshift.yaml")
    allowed = {user: one for one in of_kind(things, SCC) for user in one["users"]}
    for one in of_kind(things, "DaemonSet"):
        pod = one["spec"]["template"]["spec"]
        scc = allowed.pop(f"system:serviceaccount:gpus:{pod['serviceAccountName']}")
        assert scc["allowHostPID"] == pod.get("hostPID", False)
        assert scc["allowPrivilegedContainer"]
        profile = pod["securityContext"]["seccompProfile"]["type"]
        assert {"RuntimeDefault": "runtime/default"}[profile] in scc["seccompProfiles"]
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= set(scc["volumes"])
    assert allowed == {}


def test_the_driver_has_the_hosts_pids_only_for_usage(render: Render) -> None:
    for words, wanted in (((), False), (("--set", "usage.enabled=true"), True)):
        things = render("--set", "openshift.securityContextConstraints=true", *words)
        pod = driver_pod(things)
        assert pod.get("hostPID", False) is wanted
        assert ("USAGE_METRICS" in environment(pod)) is wanted
        allowed = {user: one for one in of_kind(things, SCC) for user in one["users"]}
        scc = allowed[f"system:serviceaccount:gpus:{pod['serviceAccountName']}"]
        assert scc["allowHostPID"] is wanted


def test_a_node_is_taken_over_with_the_settings_and_rights_of_the_driver(render: Render) -> None:
    pod = driver_pod(render("--values", EVERYTHING))
    (init,), (driver,) = pod["initContainers"], pod["containers"]
    assert init["command"] == ["dra-driver", "take-over"]
    assert places([init]).items() <= places([driver]).items()
    for same in ("image", "securityContext", "resources"):
        assert init[same] == driver[same]
    given, whole = (environment({"containers": [one]}) for one in (init, driver))
    assert given.items() <= whole.items()
    assert given.keys() >= whole.keys() & variables(TakeOverCommand)
    told(TakeOverCommand, given)


def test_cleanup_replaces_everything_else(render: Render) -> None:
    things = render("--values", EVERYTHING, "--set", "cleanup.enabled=true,cleanup.args={--force}")
    assert {thing["kind"] for thing in things} == {
        "Namespace",
        "ResourceQuota",
        "ServiceAccount",
        "DaemonSet",
        SCC,
    }
    pod = daemon_set(things, "cleanup")["spec"]["template"]["spec"]
    (scc,) = of_kind(things, SCC)
    assert scc["allowHostPID"] == pod["hostPID"] is True
    (container,) = pod["initContainers"]
    assert container["args"] == ["--force"]
    given = environment({"containers": [container]})
    whole = environment(driver_pod(render("--values", EVERYTHING))).items()
    wanted = {name: one for name, one in whole if name in variables(Cleanup)}
    assert given == wanted | {"SHARE_MEMORY": "mps"}
    told(Cleanup, given)


def test_cleanup_sees_the_node_by_the_paths_of_the_driver(render: Render) -> None:
    """NVML is told of control groups by their paths, and may take no others."""
    driver = places(driver_pod(render("--values", EVERYTHING))["containers"])
    things = render("--values", EVERYTHING, "--set", "cleanup.enabled=true")
    pod = daemon_set(things, "cleanup")["spec"]["template"]["spec"]
    cleanup = places(pod["initContainers"])
    assert cleanup["cgroup"] == "/sys/fs/cgroup"
    assert {name: driver.get(name) for name in cleanup} == cleanup


def places(containers: list[Object]) -> dict[str, str]:
    return {
        mount["name"]: mount["mountPath"]
        for container in containers
        for mount in container["volumeMounts"]
    }


def test_a_scrape_reaches_both_daemon_sets(render: Render) -> None:
    things = render("--values", EVERYTHING)
    (service,) = of_kind(things, "Service")
    (monitor,) = of_kind(things, "ServiceMonitor")
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    assert selected <= service["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == port["name"]
    for one in of_kind(things, "DaemonSet"):
        pods = one["spec"]["template"]
        assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
        (container,) = pods["spec"]["containers"]
        assert port["targetPort"] in {each["name"] for each in container["ports"]}


def test_warnings_in_place_of_refusals(render: Render) -> None:
    words = ("--set", "claimConfigsPolicy.validationActions={Warn,Audit}")
    bindings = of_kind(render(*words), "ValidatingAdmissionPolicyBinding")
    actions = {
        binding["metadata"]["name"]: binding["spec"]["validationActions"] for binding in bindings
    }
    assert actions == {
        "dra-driver-claim-configs": ["Warn", "Audit"],
        "dra-driver-near-misses": ["Warn"],
        "dra-driver-pinned-pods": ["Warn"],
        "dra-driver-own-node": ["Deny"],
        "dra-driver-own-claims": ["Deny"],
        "dra-driver-share-requests": ["Deny"],
    }


@pytest.mark.parametrize("on", [True, False])
def test_one_value_disables_claim_status_and_its_rights(render: Render, on: bool) -> None:
    things = render("--set", f"claimStatus.enabled={str(on).lower()}")
    (role,) = of_kind(things, "ClusterRole")
    granted = {
        (verb, plural)
        for rule in role["rules"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
        if "/" in plural
    }
    rights = {
        ("patch", "resourceclaims/status"),
        ("associated-node:patch", "resourceclaims/driver"),
    }
    assert granted == (rights if on else set())
    assert environment(driver_pod(things)).get("CLAIM_STATUS") == (None if on else "false")


def test_the_charts_health_is_the_drivers_own_by_default(render: Render) -> None:
    found = environment(driver_pod(render()))
    usual = Settings(node_name="n")
    for name in HEALTH_SETTINGS:
        value = found.get(name.upper(), "")
        assert type(getattr(usual, name))(value) == getattr(usual, name)


def test_a_driver_without_metrics_has_no_port_and_its_probes_all_the_same(render: Render) -> None:
    things = render("--set", "kubeletPlugin.metrics.enabled=false")
    (container,) = driver_pod(things)["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} < set(container)
    assert "ports" not in container
    assert not {"HTTP_ENDPOINT", "HEALTHCHECK_PORT"} & set(environment(driver_pod(things)))
    (policy,) = (one for one in of_kind(things, "NetworkPolicy") if "ingress" not in one["spec"])
    assert policy["metadata"]["name"] == "dra-driver"


@pytest.mark.parametrize(
    ("kubernetes", "words", "is_told"),
    [
        ("1.36.2", "mig=on-demand", True),
        ("1.36.2", "memoryCounters.enabled=true", True),
        ("1.36.2", f"{CTR_ENV}.name=MIG,{CTR_ENV}.value=on-demand", True),
        ("1.36.2", "mig=auto", False),
        ("1.37.0", "mig=on-demand", False),
    ],
)
def test_its_notes_say_what_counters_cost_an_older_scheduler(
    helm: str, tmp_path: Path, kubernetes: str, words: str, is_told: bool
) -> None:
    chart = shutil.copytree(FOLDER, tmp_path / "chart")
    notes = chart / "templates" / "NOTES.txt"
    text = '{{ define "notes" }}' + notes.read_text() + "{{ end }}"
    shown = 'kind: ConfigMap\ndata: {notes: {{ include "notes" . | toJson }}}\n'
    (chart / "templates" / "notes.yaml").write_text(text + shown)  # helm template shows no notes
    notes.unlink()
    one = ("--show-only", "templates/notes.yaml", "--kube-version", kubernetes, "--set", words)
    done = run(helm, "template", "dra-driver", chart, "--namespace", "gpus", *one)
    assert done.returncode == 0, done.stderr
    said = yaml.safe_load(done.stdout)["data"]["notes"]
    assert ("1.1 pods a second instead of 44" in " ".join(said.split())) == is_told
