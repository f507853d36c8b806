"""The admission policy for claim configs, generated from the models in `api/`. Pure.

In: nothing but the models. Out: a ValidatingAdmissionPolicy and its binding, as YAML that a person
can audit. The API server then refuses claims, claim templates and DeviceClasses with a config that
Prepare would refuse. No server of ours takes part (admissionregistration.k8s.io/v1; an object of
an older resource.k8s.io version is converted first, as matchPolicy is Equivalent by default).

Only new or changed specs are looked at: a claim that is stored already must stay free to lose its
finalizers, or it could never be deleted.
"""

import textwrap
from collections.abc import Iterable, Iterator

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.validation.cel import CONFIGS, Checks, Validation, Variable, checks, literal
from dra_driver.validation.meant_for import CLASSES
from resource_nvidia_com.decode import MODELS

NAME = "dra-driver-claim-configs"

_WIDTH = 100

OPAQUE = (
    "dyn(object).spec.?devices.?config\n"  # a claim
    ".or(dyn(object).spec.?spec.?devices.?config)\n"  # a template
    ".or(dyn(object).spec.?config)\n"  # a class
    ".orValue([])"
)
REQUESTS = (
    "dyn(object).spec.?devices.?requests\n"
    ".or(dyn(object).spec.?spec.?devices.?requests)\n"
    ".orValue([])"
)
_IS_OURS = f"it.?opaque.?driver.orValue('') == {literal(DRIVER_NAME)}"

CHANGED = "request.operation == 'CREATE' || dyn(object).spec != dyn(oldObject).spec"

_YAML = """\
# Refuses claims, claim templates and DeviceClasses whose config for {driver} is wrong, when they
# are created or changed. Without it the driver refuses the same configs, but only when a pod
# starts. docs/claim-configs.md explains each field.
#
# Written by hack/generate from the models in api/: change those, not this file.
#
# How to read it
#   matchConditions  Objects without a config for {driver}, and those whose spec does not
#                    change, are passed over: nothing else is evaluated for them.
#   variables        Each is a list. `configs` holds the parameters of every config for
#                    {driver}. Each other variable holds the values of the field it is named
#                    after, from all of these configs; null counts as not set. The last ones say
#                    which requests configs of each kind name, and for which they can be.
#   validations      One rule each: the expression must hold, or the object is refused with the
#                    message. When several fail, the API server shows the first one;
#                    `dra-driver validate FILE` shows all of them, with line numbers.
#   failurePolicy    If an expression cannot be evaluated, the object is refused too. The largest
#                    claim that the API server accepts stays within its CEL cost limits.
#
# How to switch it to warnings: set validationActions in the binding, at the end of this file, to
# [Warn, Audit]; it is claimConfigsPolicy.validationActions of the chart. Then nothing is refused:
# whoever creates a wrong config gets a warning, the audit log has it, and pods that use it do not
# start and say why in their events.
#   kubectl patch validatingadmissionpolicybinding {name} --type=merge \\
#     --patch '{{"spec": {{"validationActions": ["Warn", "Audit"]}}}}'
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: dra-driver
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [resourceclaims, resourceclaimtemplates, deviceclasses]
  matchConditions:
    - name: has-a-config-for-this-driver
{ours}
    - name: is-new-or-has-a-changed-spec
{changed}
  variables:
{variables}
  validations:
{validations}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: dra-driver
spec:
  policyName: {name}
  validationActions: [Deny]
"""


def policy_checks() -> Checks:
    """Return the variables and validations of the policy."""
    found = checks(MODELS)
    configs = f"{OPAQUE}.map(it, {_IS_OURS}, it.opaque.parameters)"
    found.variables.insert(0, Variable(name=CONFIGS, expression=configs))
    _check_kinds(found)
    return found


def _check_kinds(found: Checks) -> None:
    """Add that configs are for devices that their requests can get (validation/meant_for.py)."""
    found.variables.append(Variable(name="requests", expression=REQUESTS))
    for kind, class_name in CLASSES.items():
        is_one = f"deviceClassName == {literal(class_name)}"
        asking = (
            f"(has(it.exactly) && it.exactly.{is_one} &&\n!it.exactly.?adminAccess.orValue(false))"
            f"\n|| (has(it.firstAvailable) && it.firstAvailable.all(one, one.{is_one}))"
        )
        named = (
            f"{OPAQUE}.map(it, {_IS_OURS} &&\n"
            f"it.?opaque.?parameters.?kind.orValue(null) == {literal(kind)},\n"
            "it.?requests.orValue([]))"
        )
        can_be = f"variables.requests.map(it, {asking}, it.name)"
        found.variables.append(Variable(name=_named_by(kind), expression=named))
        found.variables.append(Variable(name=_for_kind(kind), expression=can_be))
    for kind in CLASSES:
        (other,) = (one for one in CLASSES if one != kind)
        found.refuse(
            ("kind",),
            _named_by(kind),
            f"variables.{_named_by(other)}.size() > 0\n"
            f"|| !it.exists(name, name in variables.{_for_kind(other)})\n"
            "&& (it.size() > 0 || variables.requests.size() == 0\n"
            f"|| variables.{_for_kind(other)}.size() < variables.requests.size())",
            f"must be {other} for requests of DeviceClass {CLASSES[other]}",
        )


def _named_by(kind: str) -> str:
    """Return the variable with the request names of each config of a kind; empty means all."""
    return f"requestsOf{kind}"


def _for_kind(kind: str) -> str:
    """Return the variable with the names of requests that get devices for configs of a kind."""
    return f"requestsFor{kind}"


def policy_yaml() -> str:
    """Return the manifest."""
    found = policy_checks()
    return _YAML.format(
        driver=DRIVER_NAME,
        name=NAME,
        ours=line("      expression", f"{OPAQUE}.exists(it, {_IS_OURS})"),
        changed=line("      expression", CHANGED),
        variables="\n".join(_variables(found.variables)),
        validations="\n".join(_validations(found.validations)),
    )


def _variables(variables: Iterable[Variable]) -> Iterator[str]:
    for one in variables:
        yield f"    - name: {one.name}"
        yield line("      expression", one.expression)


def _validations(validations: Iterable[Validation]) -> Iterator[str]:
    for one in validations:
        yield line("    - expression", one.expression)
        yield line("      message", one.message)


def line(key: str, text: str) -> str:
    """Return a key of a list's item and a text, on one line if it fits and is plain to YAML."""
    line = f"{key}: {text}"
    if len(line) <= _WIDTH and ": " not in text and "\n" not in text:
        return line
    lines = [
        " " * 8 + wrapped
        for part in text.split("\n")
        for wrapped in textwrap.wrap(
            part, _WIDTH - 8, break_long_words=False, break_on_hyphens=False
        )
    ]
    return "\n".join((f"{key}: >-", *lines))
