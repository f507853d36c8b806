"""Log lines about things of any name: each is one line, whatever the name is."""

import io
import json

import structlog
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fuzz
from dra_driver.ops.logs import configure_logs


@given(
    text=fuzz.texts | st.binary(max_size=20).map(lambda data: data.decode(errors="surrogateescape"))
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("\udcff")
def test_a_file_of_any_name_has_its_line(text: str) -> None:
    file = io.BytesIO()
    stream = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
    configure_logs(level="info", form="json", stream=stream)
    structlog.get_logger().warning("record quarantined", file=text)
    (line,) = file.getvalue().decode().split("\n")[:-1]
    assert json.loads(line)["event"] == "record quarantined"
