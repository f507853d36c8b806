"""docs/converting.md: its example is what the command prints, and it names all that is lost."""

import re
from pathlib import Path

from dra_driver.admin.convert.manifests import convert
from dra_driver.admin.validate.command import as_text

PAGE = (Path(__file__).parents[3] / "docs" / "converting.md").read_text()
LOST = PAGE.partition("## What is not carried over")[2]


def test_the_example_is_what_the_command_prints() -> None:
    (before,) = re.findall(r"\$ cat claim\.yaml\n(.*?)```", PAGE, re.DOTALL)
    (after,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (said,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    found = convert({"claim.yaml": before})
    assert found.text == after
    assert as_text(found.reports) == said
