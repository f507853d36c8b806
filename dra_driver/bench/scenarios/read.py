"""Reads a scenario from its file; each error names the line, the place and what is allowed there.

In: a file, or the name of a shipped scenario. Out: a `Scenario`. Errors are unknown keys, values of
the wrong type, impossible works, and two cases of one name.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dra_driver.bench.model import Goal
from dra_driver.bench.scenarios.expand import expanded
from dra_driver.bench.scenarios.model import (
    WORK_KEYS,
    CaseSpec,
    Limits,
    Scenario,
    TenantSpec,
)
from dra_driver.bench.scenarios.plan import reason, strategy_of
from dra_driver.errors import ConfigError
from dra_driver.kube.manifest import BrokenManifestError, read_documents
from resource_nvidia_com.problems import (
    InvalidConfigError,
    Path,
    Problem,
    check_duplicates,
    dotted,
    hint,
)

_SUFFIX = ".yaml"
_BRANCHES = frozenset({"int", "str", "constrained-int", "constrained-str"})
_MOST_BYTES = 1 << 20
_ANY_MEMORY = 1 << 20
"""The GPU memory to assume when works in percent of it are checked, before there is a GPU."""


def shipped() -> dict[str, Traversable]:
    """Return the files of shipped scenarios by their names."""
    folder = files("dra_driver.bench.scenarios").joinpath("shipped")
    named = sorted(folder.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(_SUFFIX): file for file in named if file.name.endswith(_SUFFIX)}


def listed() -> list[str]:
    """Return a line for each shipped scenario: its name, and what it answers."""
    known = {name: read_scenario(file.read_text("utf-8"), name) for name, file in shipped().items()}
    wide = max(map(len, known), default=0)
    return [f"{name:<{wide}}  {each.answers}" for name, each in known.items()]


def find_scenario(name: str) -> tuple[str, Scenario]:
    """Return the scenario of a shipped name or of a file, with its name. Raises ConfigError."""
    known = shipped()
    if name in known:
        return name, read_scenario(known[name].read_text("utf-8"), name)
    path = FilePath(name)
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8")
    except FileNotFoundError as error:
        near = hint(name, list(known)) or "`dra-driver bench list` lists those that are shipped"
        raise ConfigError(f"there is no scenario or file {name}: {near.strip()}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason}") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MiB, so it is not a scenario")
    return path.stem, read_scenario(text, str(path))


def read_scenario(text: str, source: str) -> Scenario:
    """Return the scenario of a text; `source` is its name in errors. Raises ConfigError."""
    try:
        documents = list(read_documents(text))
    except BrokenManifestError as error:
        raise ConfigError(f"{source}:{error.place.line}: {error}") from error
    if len(documents) != 1:
        raise ConfigError(f"{source} has {len(documents)} documents, but a scenario is one")
    (document,) = documents
    try:
        return _scenario(document.value)
    except InvalidConfigError as error:
        lines = [
            f"{source}:{document.place(problem.path).line}: {_located(problem)}"
            for problem in error.problems
        ]
        raise ConfigError("\n".join(lines)) from error


def _located(problem: Problem) -> str:
    return f"{dotted(problem.path)}: {problem.text}" if problem.path else problem.text


def _scenario(value: Any) -> Scenario:
    check_duplicates(value)
    if not isinstance(value, Mapping):
        raise InvalidConfigError([Problem(path=(), text="a scenario is a map")])
    cases, origins = [], []
    written = value.get("cases")
    for at, case in enumerate(written if isinstance(written, list) else []):
        for each in expanded(case, ("cases", at)):
            cases.append(each)
            origins.append(at)
    content = {**value, "cases": cases} if isinstance(written, list) else dict(value)
    if wrong := [*_works(content)]:
        raise InvalidConfigError(wrong)
    try:
        scenario = Scenario.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise InvalidConfigError(_problems(error, content, origins)) from error
    wrong = [*_equal_names(scenario, origins), *_impossible_works(scenario, origins)]
    if wrong := wrong or _impossible_cases(scenario, origins):
        raise InvalidConfigError(list(dict.fromkeys(wrong)))
    return scenario


def _works(content: Mapping[str, Any]) -> list[Problem]:
    """Return the unknown keys of works."""
    unknown = []
    works = content.get("works")
    for name, work in works.items() if isinstance(works, Mapping) else ():
        keys = work if isinstance(work, Mapping) else {}
        unknown += [
            Problem(path=("works", name, key), text=_unknown(key, WORK_KEYS))
            for key in keys
            if key not in WORK_KEYS
        ]
    return unknown


def _equal_names(scenario: Scenario, origins: Sequence[int]) -> list[Problem]:
    seen: set[str] = set()
    equal = []
    for at, case in zip(origins, scenario.cases, strict=True):
        if case.name in seen:
            text = (
                f'a second case with the name "{case.name}": put a variable of the matrix into it'
            )
            equal.append(Problem(path=("cases", at, "name"), text=text))
        seen.add(case.name)
    return equal


def _impossible_works(scenario: Scenario, origins: Sequence[int]) -> list[Problem]:
    """Return what is wrong with the tenants' works."""
    problems = []
    for at, case in zip(origins, scenario.cases, strict=True):
        for number, tenant in enumerate(case.tenants):
            path: Path = ("cases", at, "tenants", number)
            if extra := [key for key in tenant.with_ if key not in WORK_KEYS]:
                text = _unknown(extra[0], WORK_KEYS)
                problems.append(Problem(path=(*path, "with", extra[0]), text=text))
                continue
            if tenant.work not in scenario.works:
                near = hint(tenant.work, list(scenario.works)) or (
                    f"`works` has {', '.join(scenario.works)}"
                )
                text = f'there is no work "{tenant.work}": {near.strip()}'
                problems.append(Problem(path=(*path, "work"), text=text))
                continue
            problems += _impossible_work(scenario, tenant, path)
    return problems


def _impossible_cases(scenario: Scenario, origins: Sequence[int]) -> list[Problem]:
    """Return what is wrong with the combination of a case's tenants."""
    problems = []
    for at, case in zip(origins, scenario.cases, strict=True):
        try:
            strategy_of(scenario, case, memory_mib=_ANY_MEMORY, profiles={})
        except ValueError as error:
            problems.append(Problem(path=("cases", at), text=f'"{case.name}": {reason(error)}'))
    return problems


def _impossible_work(scenario: Scenario, tenant: TenantSpec, path: Path) -> list[Problem]:
    try:
        scenario.work(tenant, _ANY_MEMORY)
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            key = str(detail["loc"][0]) if detail["loc"] else ""
            where: Path = ("works", tenant.work, *([key] if key else []))
            if key in tenant.with_:
                where = (*path, "with", key)
            problems.append(Problem(path=where, text=_said(detail)))
        return problems
    except ValueError as error:
        return [Problem(path=path, text=str(error))]
    return []


def _problems(
    error: ValidationError, content: Mapping[str, Any], origins: Sequence[int]
) -> list[Problem]:
    """Return the errors of pydantic with the places in the file that they are about.

    A value that may have several types has an error for each of them. An error in several cases of
    one matrix is reported for the first.
    """
    texts: dict[tuple[Path, int], list[str]] = {}
    for detail in error.errors(include_url=False):
        loc = tuple(part for part in detail["loc"] if not _is_branch(part))
        text = _said(detail)
        if detail["type"] == "extra_forbidden":
            text = _unknown(str(loc[-1]), _keys(_model(loc)))
        index = loc[1] if loc[:1] == ("cases",) and len(loc) > 1 else -1
        at = index if isinstance(index, int) else -1
        path: Path = loc if at < 0 else ("cases", origins[at], *loc[2:])
        # If the items of a list are wrong, pydantic reports that it has none.
        if detail["type"] != "too_short" or not _value(content, loc):
            texts.setdefault((path, at), []).append(text)
    by_path: dict[Path, Problem] = {}
    for (path, at), several in texts.items():
        text = ", or: ".join(dict.fromkeys(several))
        if at >= 0 and origins.count(origins[at]) > 1:
            text += f' (in "{_value(content, ("cases", at, "name"))}")'
        by_path.setdefault(path, Problem(path=path, text=text))
    return list(by_path.values())


def _value(content: Any, path: Path) -> Any:
    """Return the value at a path; None if there is none."""
    for part in path:
        try:
            content = content[part]
        except (KeyError, IndexError, TypeError):
            return None
    return content


def _is_branch(part: str | int) -> bool:
    """Whether a part of pydantic's place names an alternative of a type, not a key."""
    return isinstance(part, str) and (part.endswith("]") or part in _BRANCHES)


def _said(error: ErrorDetails) -> str:
    return error["msg"].removeprefix("Value error, ")


def _model(loc: Sequence[str | int]) -> type[BaseModel]:
    """Return the model that has the key at a place."""
    above = [part for part in loc[:-1] if isinstance(part, str)]
    models: Mapping[tuple[str, ...], type[BaseModel]] = {
        ("goals",): Goal,
        ("cases",): CaseSpec,
        ("cases", "tenants"): TenantSpec,
        ("cases", "tenants", "limits"): Limits,
    }
    return models.get(tuple(above), Scenario)


def _keys(model: type[BaseModel]) -> list[str]:
    keys = [field.alias or name for name, field in model.model_fields.items()]
    return [*keys, "matrix"] if model is CaseSpec else keys


def _unknown(key: object, allowed: Sequence[str]) -> str:
    near = hint(str(key), allowed)
    return f"unknown key: {near.strip() or 'allowed are ' + ', '.join(allowed)}"
