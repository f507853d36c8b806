"""The admission policy that warns of names that are nearly this driver's. Pure.

In: the patterns of validation/near_misses.py. Out: a ValidatingAdmissionPolicy and its binding, as
YAML. Whoever creates a claim, template or DeviceClass that names gpu.nvidia.org is warned, and is
not refused: a driver may have that name.
"""

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.validation.cel import literal
from dra_driver.validation.near_misses import LITERAL, NAME
from dra_driver.validation.policy import CHANGED, OPAQUE, REQUESTS, line

NEAR_MISSES = "dra-driver-near-misses"

_SELECTORS = "?selectors.orValue([])"
_NAME = literal(f"(?i)^{NAME}$")
_LITERAL = literal(f"(?i){LITERAL}")

_YAML = """\
# Warns those who create or change a claim, claim template or DeviceClass with a config for, or a
# selector of, a driver whose name is nearly {driver}, such as gpu.nvidia.org: it would match
# nothing of this driver's, and nobody would say so. Nothing is refused.
#
# Written by hack/generate: change dra_driver/validation/near_miss_policy.py, not this file.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: dra-driver
spec:
  failurePolicy: Ignore
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [resourceclaims, resourceclaimtemplates, deviceclasses]
  matchConditions:
    - name: is-new-or-has-a-changed-spec
{changed}
  variables:
    - name: drivers
{drivers}
    - name: nearMisses
{near}
    - name: requests
{requests}
  validations:
    - expression: variables.nearMisses.size() == 0
{config}
{selectors}
{selector}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: dra-driver
spec:
  policyName: {name}
  validationActions: [Warn]
"""


def near_miss_policy_yaml() -> str:
    """Return the manifest."""
    near = f"variables.drivers.filter(it, it != {literal(DRIVER_NAME)} && it.matches({_NAME}))"
    config = (
        "'opaque.driver \"' + variables.nearMisses[0] + '\" is not this driver: "
        f'did you mean "{DRIVER_NAME}"?\''
    )
    each = f"all(it, {_is_right('it')})"
    selectors = (
        f"dyn(object).spec.{_SELECTORS}.{each} && variables.requests.all(request, "
        f"request.?exactly.{_SELECTORS}.{each} && "
        f"request.?firstAvailable.orValue([]).all(one, one.{_SELECTORS}.{each}))"
    )
    return _YAML.format(
        driver=DRIVER_NAME,
        name=NEAR_MISSES,
        changed=line("      expression", CHANGED),
        drivers=line("      expression", f"{OPAQUE}.map(it, it.?opaque.?driver.orValue(''))"),
        near=line("      expression", near),
        requests=line("      expression", REQUESTS),
        config=line("      messageExpression", config),
        selectors=line("    - expression", selectors),
        selector=line(
            "      message",
            f'a selector names a driver that is nearly "{DRIVER_NAME}", and is not this driver',
        ),
    )


def _is_right(selector: str) -> str:
    """Return whether no literal of a selector is nearly our name; ours is taken out before."""
    text = f"{selector}.?cel.?expression.orValue('')"
    for quote in ('"', "'"):
        text += f".replace({literal(f'{quote}{DRIVER_NAME}{quote}')}, '')"
    return f"!{text}.matches({_LITERAL})"
