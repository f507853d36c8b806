"""No secret of a kubeconfig comes into an error or a log line, whatever is wrong with the file."""

import base64
import logging
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.errors import DriverError
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.ops.logs import configure_logs
from sampling import examples

SECRET = "Xy7secretXy7"  # noqa: S105 (what is looked for)
ENCODED = base64.b64encode(SECRET.encode()).decode()
PLUGIN = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "true",
    "args": ["one"],
    "env": [{"name": "PASSWORD", "value": SECRET}],
}
USERS: list[dict[str, Any]] = [
    {"token": SECRET},
    {"username": "somebody", "password": SECRET},
    {"client-certificate-data": ENCODED, "client-key-data": ENCODED},
    {"token": SECRET, "exec": PLUGIN},
    {"exec": PLUGIN},
    {"auth-provider": {"name": "oidc", "config": {"client-secret": SECRET, "id-token": "a.b.c"}}},
]
SERVERS = ["http://127.0.0.1:1", f"http://somebody:{SECRET}@127.0.0.1:1", "https://127.0.0.1:1"]
PROXIES = [None, f"http://somebody:{SECRET}@127.0.0.1:1"]

Path_ = tuple[str | int, ...]


def document(user: dict[str, Any], server: str, proxy: str | None) -> dict[str, Any]:
    cluster = {"server": server} | ({"proxy-url": proxy} if proxy else {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
    }


def places(value: Any, here: Path_ = ()) -> Iterator[Path_]:
    """All places in a document, but itself."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inside if isinstance(value, dict | list) else ():
        yield (*here, key)
        yield from places(one, (*here, key))


@st.composite
def kubeconfigs(draw: st.DrawFn) -> str:
    """A file that is right, or has a key less, a value of another form, or a stray character."""
    whole = deepcopy(
        document(*map(draw, (st.sampled_from(each) for each in (USERS, SERVERS, PROXIES))))  # type: ignore[arg-type]
    )
    *way, key = draw(st.sampled_from(list(places(whole))))
    holder: Any = whole
    for step in way:
        holder = holder[step]
    match draw(st.sampled_from(["nothing", "key", "form", "character"])):
        case "key":
            del holder[key]
        case "form":
            holder[key] = draw(
                st.sampled_from([None, 3, [], {}, [holder[key]], {"a": holder[key]}])
            )
        case "character":
            text = yaml.safe_dump(whole, sort_keys=False)
            at = draw(st.integers(0, len(text)))
            return text[:at] + draw(st.sampled_from("\"'{}[]:*&!@%|\t\n-#\\\0é")) + text[at:]
    return yaml.safe_dump(whole, sort_keys=False)


def said_of(text: str) -> str:
    """What is told of a kubeconfig, as an error and in the log, and of its use."""
    log = StringIO()
    configure_logs(level="debug", form="json", stream=log)
    logging.root.setLevel(logging.DEBUG)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(text)
        try:
            client = from_kubeconfig(path)
            try:
                client.get_node("node", timeout=5.0)
            finally:
                client.close()
        except DriverError as error:
            return f"{error}\n{log.getvalue()}"
    raise AssertionError("nobody answers there")


@settings(max_examples=examples(100), deadline=None)
@given(kubeconfigs())
def test_errors_about_a_kubeconfig_show_no_secrets(text: str) -> None:
    said = said_of(text)
    assert SECRET not in said
    assert ENCODED not in said
