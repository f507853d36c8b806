"""The admission policy that warns of what a cluster accepts but was most likely not meant. Pure.

A user who creates a claim, template or DeviceClass that names gpu.nvidia.org gets a warning, not a
refusal, because a driver may have that name. The same applies to a claim or template whose config
needs what some cards cannot do, and whose selectors do not ask for it
(admin/validate/card_needs.py). Claims that the API server makes for pods of a template are skipped:
the template's author was warned.
"""

from dra_driver.admin.admission.cel import Variable, literal
from dra_driver.admin.admission.template import OPAQUE, REQUESTS, Policy
from dra_driver.admin.validate.card_needs import ADVICE, FACTS
from dra_driver.admin.validate.near_misses import LITERAL, NAME
from dra_driver.devices.names import DRIVER_NAME

NEAR_MISSES = "dra-driver-near-misses"

_SELECTORS = "?selectors.orValue([])"
_NAME = literal(f"(?i)^{NAME}$")
_LITERAL = literal(f"(?i){LITERAL}")

_DEMANDING = (
    "dyn(object).metadata.?annotations['resource.kubernetes.io/pod-claim-name'].hasValue() ? [] : "
    f"{OPAQUE}.filter(it, it.?opaque.?driver.orValue('') == {literal(DRIVER_NAME)} && "
    "it.opaque.?parameters.?kind.orValue('') == 'GpuConfig' && (it.opaque.parameters.?sharing"
    ".?timeSlicingConfig.?interval.orValue('Default') != 'Default' || it.opaque.parameters"
    ".?sharing.?mpsConfig.orValue({}).size() > 0))"
)
"""Configs of GPUs that not every card can follow."""

_NOT_EVERY_CARD = (
    "a config sets a time-slice or limits of MPS, which some cards, such as the Tesla P4, cannot "
    f"do: {ADVICE}"
)

_ABOUT = f"""\
Warns those who create or change a claim, claim template or DeviceClass with a config for, or a
selector of, a driver whose name is nearly {DRIVER_NAME}, such as gpu.nvidia.org: it would match
nothing of this driver's, and nobody would say so. Also of a config with a time-slice or limits of
MPS whose request may get a card that cannot do that. Nothing is refused.

Written by hack/generate: change dra_driver/admin/admission/near_miss_policy.py, not this file.
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
    selector = f'a selector names a driver that is nearly "{DRIVER_NAME}", and is not this driver'
    drivers = f"{OPAQUE}.map(it, it.?opaque.?driver.orValue(''))"
    return Policy(
        name=NEAR_MISSES,
        about=_ABOUT,
        failure_policy="Ignore",
        action="Warn",
        variables=[
            Variable(name="drivers", expression=drivers),
            Variable(name="nearMisses", expression=near),
            Variable(name="requests", expression=REQUESTS),
            Variable(name="demanding", expression=_DEMANDING),
        ],
        validations=[
            {"expression": "variables.nearMisses.size() == 0", "messageExpression": config},
            {"expression": selectors, "message": selector},
            {"expression": _asks_for_cards(), "message": _NOT_EVERY_CARD},
        ],
    ).yaml()


def _is_right(selector: str) -> str:
    """Return whether no literal of a selector is close to our name; ours is removed before."""
    text = f"{selector}.?cel.?expression.orValue('')"
    for quote in ('"', "'"):
        text += f".replace({literal(f'{quote}{DRIVER_NAME}{quote}')}, '')"
    return f"!{text}.matches({_LITERAL})"


def _asks_for_cards() -> str:
    """Return whether each request under a demanding config selects its cards."""
    named = (
        "variables.demanding.exists(it, it.?requests.orValue([]).size() == 0 || "
        "it.requests.exists(named, named == request.name || "
        "named.startsWith(request.name + '/')))"
    )
    reads = literal("|".join(FACTS))

    def selects(request: str) -> str:
        return (
            f"({request}.?deviceClassName.orValue('') != {literal(DRIVER_NAME)} || "
            f"{request}.?adminAccess.orValue(false) || {request}.{_SELECTORS}.exists(it, "
            f"it.?cel.?expression.orValue('').matches({reads})))"
        )

    return (
        f"variables.demanding.size() == 0 || variables.requests.all(request, !{named} || "
        f"((!has(request.exactly) || {selects('request.exactly')}) && "
        f"request.?firstAvailable.orValue([]).all(one, {selects('one')})))"
    )
