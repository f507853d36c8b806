"""The admission policy for claim configs, generated from the models in `api/`. Pure.

The API server then refuses claims, claim templates and DeviceClasses with a config that Prepare
would refuse.
"""

from dra_driver.admin.admission.cel import CONFIGS, Checks, Variable, checks, literal
from dra_driver.admin.admission.template import OPAQUE, REQUESTS, Policy
from dra_driver.admin.validate.meant_for import CLASSES
from dra_driver.devices.names import DRIVER_NAME
from resource_nvidia_com.decode import MODELS

NAME = "dra-driver-claim-configs"

_IS_OURS = f"it.?opaque.?driver.orValue('') == {literal(DRIVER_NAME)}"

_ABOUT = f"""\
Refuses claims, claim templates and DeviceClasses whose config for {DRIVER_NAME} is wrong, when they
are created or changed. Without it the driver refuses the same configs, but only when a pod
starts. docs/claim-configs.md explains each field.

Written by hack/generate from the models in api/: change those, not this file.

How to read it
  matchConditions  Objects without a config for {DRIVER_NAME}, and those whose spec does not
                   change, are passed over: nothing else is evaluated for them.
  variables        Each is a list. `configs` holds the parameters of every config for
                   {DRIVER_NAME}. Each other variable holds the values of the field it is named
                   after, from all of these configs; null counts as not set. The last ones say,
                   for each kind, which requests get its devices for certain, and what configs
                   of other kinds name where no config is of that kind.
  validations      One rule each: the expression must hold, or the object is refused with the
                   message. When several fail, the API server shows the first one;
                   `dra-driver validate FILE` shows all of them, with line numbers.
  failurePolicy    If an expression cannot be evaluated, the object is refused too. The largest
                   claim that the API server accepts stays within its CEL cost limits.

How to switch it to warnings: set validationActions in the binding, at the end of this file, to
[Warn, Audit]; it is claimConfigsPolicy.validationActions of the chart. Then nothing is refused:
a wrong config gets its author a warning, the audit log has it, and pods that use it do not start
and say why in their events.
  kubectl patch validatingadmissionpolicybinding {NAME} --type=merge \\
    --patch '{{"spec": {{"validationActions": ["Warn", "Audit"]}}}}'
"""


def policy_checks() -> Checks:
    """Return the variables and validations of the policy."""
    made = checks(MODELS)
    configs = f"{OPAQUE}.map(it, {_IS_OURS}, it.opaque.parameters)"
    made.variables.insert(0, Variable(name=CONFIGS, expression=configs))
    _check_kinds(made)
    return made


def _check_kinds(made: Checks) -> None:
    """Add that configs are for devices that their requests can get (meant_for.py)."""
    made.variables.append(Variable(name="requests", expression=REQUESTS))
    for kind, class_name in CLASSES.items():
        is_one = f"deviceClassName == {literal(class_name)}"
        asking = (
            f"(has(it.exactly) && it.exactly.{is_one} &&\n!it.exactly.?adminAccess.orValue(false))"
            f"\n|| (has(it.firstAvailable) && it.firstAvailable.all(one, one.{is_one}))"
        )
        certain, named = f"requestsFor{kind}", f"requestsNotOf{kind}"
        can_be = f"variables.requests.map(it, {asking}, it.name)"
        others = (
            f"variables.{CONFIGS}.exists(it, it.?kind.orValue(null) == {literal(kind)}) ? [] :\n"
            f"{OPAQUE}.map(it, {_IS_OURS}, it.?requests.orValue([]))"
        )
        made.variables.append(Variable(name=certain, expression=can_be))
        made.variables.append(Variable(name=named, expression=others))
        made.refuse(
            ("kind",),
            named,
            f"!it.exists(name, name in variables.{certain})\n"
            "&& (it.size() > 0 || variables.requests.size() == 0\n"
            f"|| variables.{certain}.size() < variables.requests.size())",
            f"must be {kind} for requests of DeviceClass {class_name}",
        )


def policy_yaml() -> str:
    """Return the manifest."""
    made = policy_checks()
    ours = f"{OPAQUE}.exists(it, {_IS_OURS})"
    return Policy(
        name=NAME,
        about=_ABOUT,
        failure_policy="Fail",
        action="Deny",
        conditions=[Variable(name="has-a-config-for-this-driver", expression=ours)],
        variables=made.variables,
        validations=[
            {"expression": validation.expression, "message": validation.message}
            for validation in made.validations
        ],
    ).yaml()
