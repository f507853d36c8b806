"""Which cluster a command speaks to, by what is named and what is there."""

from pathlib import Path

import pytest
import yaml

from dra_driver.admin.connect import connect
from dra_driver.errors import SetupError
from dra_driver.kube.client import KubeClient
from dra_driver.node.context import connect_pod


def write(path: Path, server: str, *, context: str = "c", **more: object) -> Path:
    config = {
        "current-context": context,
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "clusters": [{"name": context, "cluster": {"server": f"https://{server}:6443"}}],
        "users": [{"name": context, "user": more}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config))
    return path


def server(client: KubeClient) -> str:
    client.close()
    return client._connections.host.removesuffix(":6443")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has a kubeconfig at its usual place."""
    write(tmp_path / "home/.kube/config", "usual")
    return {"HOME": str(tmp_path / "home")}


def test_the_file_that_is_named_comes_first(tmp_path: Path, home: dict[str, str]) -> None:
    named = write(tmp_path / "named", "named")
    variable = {"KUBECONFIG": str(write(tmp_path / "variable", "variable"))}

    assert server(connect(named, "", environment=home | variable)) == "named"
    assert server(connect(None, "", environment=home | variable)) == "variable"
    assert server(connect(None, "", environment=home | {"KUBECONFIG": ""})) == "usual"


def test_several_files_count_as_one_and_the_first_says_which_context(
    tmp_path: Path, home: dict[str, str]
) -> None:
    one, two = (write(tmp_path / name, name, context=name) for name in ("one", "two"))
    variable = {"KUBECONFIG": f"{one}:{two}:{tmp_path / 'missing'}"}

    assert server(connect(None, "", environment=home | variable)) == "one"
    assert server(connect(None, "two", environment=home | variable)) == "two"


def test_a_token_file_is_found_beside_the_file_that_names_it(
    tmp_path: Path, home: dict[str, str]
) -> None:
    one = write(tmp_path / "a/config", "one", context="one")
    two = write(tmp_path / "b/config", "two", context="two", tokenFile="token")
    (tmp_path / "b/token").write_text("secret")
    variable = {"KUBECONFIG": f"{one}:{two}"}

    client = connect(None, "two", environment=home | variable)
    assert client._all_headers(None)["Authorization"] == "Bearer secret"
    client.close()


def test_a_context_that_is_not_there_is_refused_with_those_that_are(home: dict[str, str]) -> None:
    with pytest.raises(SetupError, match=r"has no context 'prod'; there are: c$"):
        connect(None, "prod", environment=home)


def test_a_variable_without_an_existing_file_is_reported(home: dict[str, str]) -> None:
    with pytest.raises(SetupError, match="KUBECONFIG is '/nowhere/config'"):
        connect(None, "", environment=home | {"KUBECONFIG": "/nowhere/config"})


def test_without_any_file_the_error_names_all_ways(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"~/\.kube/config, KUBECONFIG .* --kubeconfig"):
        connect(None, "", environment={"HOME": str(tmp_path)})


def test_in_a_pod_its_service_account_is_used() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "x"}

    with pytest.raises(SetupError, match="KUBERNETES_SERVICE_PORT is 'x'"):
        connect(None, "", environment=pod)
    with pytest.raises(SetupError, match="no kubeconfig to find the context 'prod' in"):
        connect(None, "prod", environment=pod)


def test_without_kubeconfig_outside_of_a_pod_the_driver_says_what_to_give() -> None:
    with pytest.raises(SetupError, match="--kubeconfig"):
        connect_pod(None, {})
