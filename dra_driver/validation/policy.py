"""The admission policy for claim configs, generated from the models in `api/`. Pure.

In: nothing but the models. Out: a ValidatingAdmissionPolicy and its binding, as YAML. The API
server then refuses claims, claim templates and DeviceClasses with a config that Prepare would
refuse, in the same words, to the person who writes them. No server of ours takes part
(admissionregistration.k8s.io/v1; an object of an older resource.k8s.io version is converted first,
as matchPolicy is Equivalent by default).

Only new or changed specs are looked at: a claim that is stored already must stay free to lose its
finalizers, or it could never be deleted.
"""

from typing import Any

import yaml

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.validation.cel import literal, model_problems, root_problem
from resource_nvidia_com.decode import MODELS
from resource_nvidia_com.v1beta1.vfio import UNSUPPORTED, VfioDeviceConfig

NAME = "dra-driver-claim-configs"

_HEADER = """\
# Refuses claim configs that the driver would refuse, before a pod waits for them.
#
# Written by hack/generate from the models in api/: change those. The expressions are long because
# they say of every field what is wrong with it; `dra-driver validate FILE` says the same.
"""

_LONGEST_MESSAGE = 4000
"""Characters; the API server drops messages of over 5 KiB, and then says only `message`."""


def policy_yaml() -> str:
    """Return the manifest."""
    documents = [_policy(), _binding()]
    return _HEADER + "---\n".join(
        yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
        for one in documents
    )


def _policy() -> dict[str, Any]:
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["resourceclaims", "resourceclaimtemplates", "deviceclasses"],
    }
    changed = "request.operation == 'CREATE' || dyn(object).spec != dyn(oldObject).spec"
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": _metadata(),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [rule]},
            "matchConditions": [{"name": "new-or-changed", "expression": changed}],
            "variables": [
                {"name": name, "expression": expression}
                for name, expression in _variables().items()
            ],
            "validations": [
                {
                    "expression": "variables.problems.size() == 0",
                    "reason": "Invalid",
                    "message": "a config for the driver is wrong: see `dra-driver validate FILE`",
                    "messageExpression": (
                        f"variables.text.size() <= {_LONGEST_MESSAGE} ? variables.text : "
                        f"variables.text.substring(0, {_LONGEST_MESSAGE}) + '…'"
                    ),
                }
            ],
        },
    }


def _binding() -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": _metadata(),
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }


def _metadata() -> dict[str, Any]:
    return {"name": NAME, "labels": {"app.kubernetes.io/name": "dra-driver"}}


def _variables() -> dict[str, str]:
    """Return the policy's variables, name → CEL, in the order of their use.

    `ours` holds {at: where it stands, of: parameters} for each config of this driver; the lists
    made of it have an entry for each of these.
    """
    claims, templates = ("resourceclaims", "resourceclaimtemplates")
    spec = "dyn(object).spec"
    resource = "request.resource.resource"
    found = {
        "configs": (
            f"{resource} == '{claims}' ? {spec}.?devices.?config.orValue([]) : "
            f"{resource} == '{templates}' ? {spec}.?spec.?devices.?config.orValue([]) : "
            f"{spec}.?config.orValue([])"
        ),
        "places": (
            f"{resource} == '{claims}' ? ['spec.devices.config', 'claim'] : "
            f"{resource} == '{templates}' ? ['spec.spec.devices.config', 'template'] : "
            "['spec.config', 'DeviceClass']"
        ),
        "ours": (
            "variables.configs.transformList(index, config, "
            f"config.?opaque.?driver.orValue('') == {literal(DRIVER_NAME)}, "
            "{'at': dyn(variables.places[0] + '[' + string(index) + '] of the ' + "
            "variables.places[1]), 'of': config.opaque.parameters})"
        ),
        "roots": f"variables.ours.map(our, {root_problem('our.of')})",
    }
    lists = []
    for kind, model in MODELS.items():
        name = kind[0].lower() + kind[1:]
        lists.append(f"variables.{name}[index]")
        wrong = model_problems(model, "our.of")
        if model is VfioDeviceConfig:
            wrong = f"[{wrong}].map(found, found.size() > 0 ? found : [{literal(UNSUPPORTED)}])[0]"
        found[name] = (
            f"variables.ours.transformList(index, our, variables.roots[index] != '' || "
            f"our.of.kind != {literal(kind)} ? [] : {wrong})"
        )
    found["problems"] = (
        "variables.ours.transformList(index, our, our.at + ': ' + (variables.roots[index] != '' ? "
        f"variables.roots[index] : ({' + '.join(lists)}).join('; ')))"
        ".filter(text, !text.endsWith(': '))"
    )
    found["text"] = "variables.problems.join('; ')"
    return found


class _Dumper(yaml.SafeDumper):
    """Writes long texts as folded blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = ">" if len(value) > 80 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
