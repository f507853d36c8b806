"""What queries name: metrics with their labels, read from their syntax."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser as syntax

from exported import Exported

TARGET = frozenset({"cluster", "node", "instance"})
"""Labels that a scrape adds: the chart's ServiceMonitor sets `node`, and Prometheus the others."""

OF_PROMETHEUS = {"up": frozenset({"job", "namespace", "pod", "container"})}
"""What it says itself of each target."""


@dataclass(frozen=True, kw_only=True)
class Selector:
    """A metric, and what is asked of its labels: name, comparison, value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def selectors(query: str) -> list[Selector]:
    """Each selector of a query.

    Raises:
        ValueError: it is no PromQL.
    """
    return [
        Selector(
            metric=node.name,
            matchers=tuple(
                (matcher.name, str(matcher.op), matcher.value) for matcher in node.matchers.matchers
            ),
        )
        for node in nodes(syntax.parse(query))
        if isinstance(node, syntax.VectorSelector)
    ]


def nodes(node: syntax.Expr) -> Iterator[syntax.Expr]:
    """A node and all below it."""
    yield node
    match node:
        case syntax.BinaryExpr():
            inside = [node.lhs, node.rhs]
        case syntax.Call():
            inside = list(node.args)
        case syntax.AggregateExpr():
            inside = [node.expr, *([node.param] if node.param else [])]
        case syntax.ParenExpr() | syntax.UnaryExpr() | syntax.SubqueryExpr():
            inside = [node.expr]
        case syntax.MatrixSelector():
            inside = [node.vector_selector]
        case syntax.VectorSelector() | syntax.NumberLiteral() | syntax.StringLiteral():
            inside = []
        case _:
            raise AssertionError(type(node))
    for one in inside:
        yield from nodes(one)


def mistakes(query: str, known: Exported) -> Iterator[str]:
    """What a query names that is not exported."""
    for selector in selectors(query):
        labels = OF_PROMETHEUS.get(selector.metric, known.labels.get(selector.metric))
        if labels is None:
            yield f"no metric {selector.metric}"
            continue
        for label, _, value in selector.matchers:
            seen = known.values.get((selector.metric, label), set())
            if label in labels and label in CLOSED:
                yield from (
                    f"{selector.metric} has no {label} {one}"
                    for one in value.split("|")
                    if one not in seen
                )
            elif label not in labels | TARGET:
                yield f"{selector.metric} has no label {label}"
    for node in nodes(syntax.parse(query)):
        if isinstance(node, syntax.AggregateExpr) and node.modifier:
            there = frozenset[str]().union(*(labels_of(known, one) for one in below(node)))
            yield from (f"by {one}: none" for one in node.modifier.labels if one not in there)


CLOSED = frozenset(
    {"state", "severity", "cause", "operation", "error_type", "device_type", "strategy", "owner"}
)
"""Labels of which each value is known beforehand."""


def below(node: syntax.Expr) -> list[str]:
    """The metrics in a node."""
    return [one.name for one in nodes(node) if isinstance(one, syntax.VectorSelector)]


def labels_of(known: Exported, metric: str) -> frozenset[str]:
    """The labels that a series of a metric has in Prometheus."""
    own = OF_PROMETHEUS.get(metric, known.labels.get(metric, frozenset()))
    return own | TARGET


def result_labels(query: str, known: Exported) -> frozenset[str]:
    """Labels that what a query comes to has."""
    return _result(syntax.parse(query), known)


def _result(node: syntax.Expr, known: Exported) -> frozenset[str]:
    match node:
        case syntax.AggregateExpr() if str(node.op) not in {"topk", "bottomk"}:
            found = frozenset(node.modifier.labels if node.modifier else ())
        case syntax.AggregateExpr() | syntax.ParenExpr() | syntax.UnaryExpr():
            found = _result(node.expr, known)
        case syntax.BinaryExpr():
            sides = [one for one in (node.lhs, node.rhs) if not is_number(one)]
            found = frozenset.intersection(*(_result(side, known) for side in sides))
        case syntax.Call() if node.func.name == "vector":
            found = frozenset()
        case syntax.Call():
            lost = {"le"} if node.func.name == "histogram_quantile" else set()
            (series,) = (arg for arg in node.args if not is_number(arg))
            found = _result(series, known) - lost
        case syntax.MatrixSelector():
            found = labels_of(known, node.vector_selector.name)
        case syntax.VectorSelector():
            found = labels_of(known, node.name)
        case _:
            raise AssertionError(type(node))
    return found


def is_number(node: syntax.Expr) -> bool:
    return isinstance(node, syntax.NumberLiteral)


def placeholders(text: str, form: str) -> set[str]:
    """Labels that a text takes: `form` is a pattern with one group."""
    return set(re.findall(form, text))
