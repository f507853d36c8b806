"""The admission policy that warns of what a cluster accepts but was most likely not meant. Pure.

A user who creates a claim, template or DeviceClass that names gpu.nvidia.org gets a warning, not a
refusal, because a driver may have that name.
"""

from dra_driver.admin.admission.cel import Variable, literal
from dra_driver.admin.admission.template import OPAQUE, REQUESTS, Policy
from dra_driver.admin.validate.near_misses import LITERAL, NAME
from dra_driver.devices.names import DRIVER_NAME

NEAR_MISSES = "dra-driver-near-misses"

_SELECTORS = "?selectors.orValue([])"
_NAME = literal(f"(?i)^{NAME}$")
_LITERAL = literal(f"(?i){LITERAL}")

_ABOUT = f"""\
Warns users who create or change a claim, claim template or DeviceClass with a config for, or a
selector of, a driver whose name is nearly {DRIVER_NAME}, such as gpu.nvidia.org: it would have
no effect on this driver, without any message. Nothing is refused.

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
        ],
        validations=[
            {"expression": "variables.nearMisses.size() == 0", "messageExpression": config},
            {"expression": selectors, "message": selector},
        ],
    ).yaml()


def _is_right(selector: str) -> str:
    """Return whether no literal of a selector is close to our name; ours is removed before."""
    text = f"{selector}.?cel.?expression.orValue('')"
    for quote in ('"', "'"):
        text += f".replace({literal(f'{quote}{DRIVER_NAME}{quote}')}, '')"
    return f"!{text}.matches({_LITERAL})"
