"""What strangers wrote is shown: no terminal, log or reader of events acts on it."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.admin.output import for_programs
from dra_driver.cli import main
from dra_driver.host.printing import escaping
from dra_driver.kube.events import Events, Regarding
from dra_driver.kube.outbox import Outbox
from dra_driver.ops.logs import configure_logs
from resource_nvidia_com.printable import plain, printable

CLEAR, HIDE, CLIPBOARD, TURN = "\x1b[2J", "\x1b[8m", "\x1b]52;c;QUFB\a", "\u202e"
HOSTILE = f"{CLEAR}{HIDE}{CLIPBOARD}{TURN}\u200b\x9b31m"
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": f"a{HOSTILE}"},
    "spec": {
        "devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}],
            "config": [
                {
                    "opaque": {
                        "driver": "gpu.nvidia.com",
                        "parameters": {
                            "apiVersion": "resource.nvidia.com/v1beta1",
                            "kind": "GpuConfig",
                            f"sharing{HOSTILE}": {"strategy": HOSTILE},
                        },
                    }
                }
            ],
        }
    },
}


def shows(text: str) -> bool:
    return all(one.isprintable() or one in "\n\t" for one in text)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / f"claim{CLEAR}{TURN}.yaml"
    path.write_text(yaml.safe_dump(CLAIM))
    return path


@pytest.mark.parametrize("words", [(), ("-o", "json"), ("-o", "yaml")])
def test_validate_shows_what_a_manifest_and_its_name_hold(
    manifest: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *words, str(manifest)]) == 1
    said = capsys.readouterr()
    assert "unknown field" in said.out
    assert shows(said.out)
    assert shows(said.err)
    if words:
        (error,) = yaml.safe_load(said.out)["errors"]
        assert error["file"] == str(manifest)


def test_convert_shows_it_too(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / f"other{HIDE}.yaml"
    other.write_text(yaml.safe_dump({**CLAIM, "kind": f"Res{CLEAR}"}))
    main(["convert", str(manifest), str(other), str(tmp_path / f"none{CLEAR}")])
    said = capsys.readouterr()
    assert shows(said.out)
    assert shows(said.err)
    assert "none\\u001b[2J" in said.err


def test_unknown_options_are_escaped_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{CLEAR}frobnicate"]) == 2
    assert shows(capsys.readouterr().err)


@pytest.mark.parametrize("form", ["console", "json"])
def test_logs_show_it(form: str) -> None:
    out = io.StringIO()
    configure_logs(level="info", form=form, stream=out)
    structlog.get_logger().info("claim prepared", claim=HOSTILE, reason=ValueError(HOSTILE))
    assert "\\u001b[2J" in out.getvalue()
    assert shows(out.getvalue())


def test_events_show_it() -> None:
    about = Regarding(api_version="v1", kind="Pod", name="p", uid="u", namespace="n")
    events = Events(None, Outbox(), controller="c", node="i")  # type: ignore[arg-type]
    event = events.event(about, reason="R", action="A", note=HOSTILE, time=datetime.now(UTC))
    assert shows(str(event["note"]))


@given(st.text())
def test_any_text_is_shown_on_one_line_and_what_prints_stays(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert json.loads('"' + printable(json.dumps(text, ensure_ascii=False)[1:-1]) + '"') == text
    assert "".join(one for one in text if one.isprintable()) == text or shown != text
    assert plain(text).isprintable()


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_programs_get_the_original_text(text: str) -> None:
    document = json.dumps({"name": text}, ensure_ascii=False)
    as_json, as_yaml = for_programs(document, "json"), for_programs(document, "yaml")
    assert shows(as_json)
    assert shows(as_yaml)
    assert json.loads(as_json) == yaml.safe_load(as_yaml) == {"name": text}


def test_streams_are_as_before_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    with escaping(), escaping():
        print(f"tab\tand line\n{CLEAR}")  # noqa: T201
    print(CLEAR)  # noqa: T201
    assert capsys.readouterr().out == f"tab\tand line\n\\u001b[2J\n{CLEAR}\n"
