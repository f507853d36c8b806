"""What this driver's admission policies have in common, as YAML that a person can audit. Pure.

No webhook of this driver is involved (admissionregistration.k8s.io/v1; an object of an older
resource.k8s.io version is converted first, as matchPolicy is Equivalent by default). Only new or
changed specs are checked: it must stay possible to remove the finalizers of a stored claim, or it
could never be deleted.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from dra_driver.admin.admission.cel import Variable

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

_CHANGED = Variable(
    name="is-new-or-has-a-changed-spec",
    expression="request.operation == 'CREATE' || dyn(object).spec != dyn(oldObject).spec",
)

_YAML = """\
{about}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: dra-driver
spec:
  failurePolicy: {failure_policy}
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [resourceclaims, resourceclaimtemplates, deviceclasses]
  matchConditions:
{conditions}
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
  validationActions: [{action}]
"""


class Policy(Struct, frozen=True, kw_only=True):
    """One policy. `about` is the comment at its head; line breaks in texts are kept.

    `conditions` say which objects it applies to, among those that are new or have a changed spec;
    each of `validations` has the keys that Kubernetes gives it.
    """

    name: str
    about: str
    failure_policy: Literal["Fail", "Ignore"]
    action: Literal["Deny", "Warn"]
    conditions: Sequence[Variable] = ()
    variables: Sequence[Variable]
    validations: Sequence[Mapping[str, str]]

    def yaml(self) -> str:
        """Return the manifest."""
        return _YAML.format(
            about="\n".join(f"# {text}".rstrip() for text in self.about.splitlines()),
            name=self.name,
            failure_policy=self.failure_policy,
            conditions=_items(_named((*self.conditions, _CHANGED))),
            variables=_items(_named(self.variables)),
            validations=_items(self.validations),
            action=self.action,
        )


def _named(variables: Iterable[Variable]) -> Iterator[Mapping[str, str]]:
    for variable in variables:
        yield {"name": variable.name, "expression": variable.expression}


def _items(items: Iterable[Mapping[str, str]]) -> str:
    """Return the items of a list."""
    return "\n".join(
        _line(f"    {' ' if place else '-'} {key}", text)
        for item in items
        for place, (key, text) in enumerate(item.items())
    )


def _line(key: str, text: str) -> str:
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
