"""The admission policy for claim configs, generated from the models in `api/`. Pure.

The API server then refuses claims, claim templates and DeviceClasses with a config that Prepare
would refuse.
"""

from dra_driver.admin.admission.cel import CONFIGS, Checks, Variable, checks, literal
from dra_driver.admin.admission.template import OPAQUE, REQUESTS, Policy
from dra_driver.admin.validate.meant_for import KINDS
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
                   after, from all of these configs; null counts as not set. The last ones say
                   what each request may get and change: the kinds that fit, and the kinds
                   of the configs that it has, of which the last one counts.
  validations      One rule each: the expression must hold, or the object is refused with the
                   message. When several fail, the API server shows the first one;
                   `dra-driver validate FILE` shows all of them, with line numbers.
  failurePolicy    If an expression cannot be evaluated, the object is refused too. The largest
                   claim that the API server accepts stays within its CEL cost limits.

How to switch it to warnings: set validationActions in the binding, at the end of this file, to
[Warn, Audit]; it is claimConfigsPolicy.validationActions of the chart. Then nothing is refused:
a wrong config gets its author a warning, the audit log shows it, and pods that use it do not start
and say why in their events.
  kubectl patch validatingadmissionpolicybinding {NAME} --type=merge \\
    --patch '{{"spec": {{"validationActions": ["Warn", "Audit"]}}}}'
"""


def policy_checks() -> Checks:
    """Return the variables and validations of the policy."""
    made = checks(MODELS)
    made.variables[:0] = [
        Variable(name="entries", expression=f"{OPAQUE}.filter(it, {_IS_OURS})"),
        Variable(name=CONFIGS, expression="variables.entries.map(it, it.opaque.parameters)"),
    ]
    _check_kinds(made)
    return made


def _check_kinds(made: Checks) -> None:
    """Add that configs are for devices that their requests can get (meant_for.py)."""
    # CEL writes maps and lists of strings as Python does.
    of_class = {name: [*kinds] for name, kinds in KINDS.items()}
    kinds = f"{of_class}[?one.?deviceClassName.orValue('')].orValue({[*MODELS]})"
    devices = (
        f"{REQUESTS}.map(it, it.?firstAvailable.orValue([it.?exactly.orValue({{}})])\n"
        ".map(one, !one.?adminAccess.orValue(false),\n"
        "{'names': [string(it.name), it.name + '/' + one.?name.orValue('')],\n"
        f"'kinds': {kinds}}}))"
    )
    kind = "it.opaque.parameters.?kind.orValue(null)"
    is_for = (
        f"it.?requests.orValue([]).size() == 0 ? {kind} in one.kinds :\n"
        "one.names.exists(name, name in it.requests)"
    )
    by = f"dyn(variables.entries.filter(it, {is_for})\n.map(it, {kind}))"
    each = f"devices.map(one,\n{{'kinds': dyn(one.kinds), 'by': {by}}})"
    made.variables.extend(
        [
            Variable(name="devices", expression=devices),
            Variable(name="decided", expression=f"variables.devices.map(devices, {each})"),
        ]
    )
    classes = (f"{kind} for {name}" for name, (kind, *others) in KINDS.items() if not others)
    fit, which = "must fit the devices of", ", ".join(classes)
    fits = "one.by.size() == 0 || one.by[one.by.size() - 1] in one.kinds"
    made.refuse(
        ("kind",),
        "decided",
        f"it.size() == 0 || it.exists(one, {fits})",
        f"{fit} each request that its config names: {which}",
    )
    has_none = "variables.decided.exists(devices, devices.exists(one, one.by.size() == 0))"
    could = f"variables.decided.exists(devices, devices.exists(one,\n{kind} in one.kinds))"
    unnamed = f"it.?requests.orValue([]).size() > 0 || {could}\n|| !{has_none}"
    made.refuse(("kind",), "entries", unnamed, f"{fit} a request if its config names none: {which}")


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
