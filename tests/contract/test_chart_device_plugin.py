"""Values of NVIDIA's device plugin: taken, or refused by a text that names the key to set here.

In: the table of docs/migrating-from-the-device-plugin.md, each key of which helm is given.
"""

import re
from pathlib import Path

from charts import FOLDER, REPOSITORY, run

PAGE = REPOSITORY / "docs" / "migrating-from-the-device-plugin.md"
TAKEN = "the same"
VALUES = {
    "config.map": "config.map.default=x",
    "nvidiaDriverRoot": "nvidiaDriverRoot=/run/nvidia/driver",
    "imagePullSecrets": "imagePullSecrets[0].name=x",
    "image.pullPolicy": "image.pullPolicy=Always",
    "allowDefaultNamespace": "allowDefaultNamespace=true",
}
"""What is set, where `x` would be refused for another reason."""


def rows() -> list[tuple[str, str]]:
    """Each key of the table, with what its row says."""
    _, _, table = PAGE.read_text().partition("| device plugin's chart | here |\n|---|---|\n")
    lines = table.partition("\n\n")[0].splitlines()
    cells = [line.split("|")[1:3] for line in lines]
    return [(key, here.strip()) for keys, here in cells for key in re.findall(r"`([^`]+)`", keys)]


def said(helm: str, *words: str) -> str:
    """What helm complains of; empty if it takes the values."""
    done = run(helm, "template", "a", FOLDER, "--namespace", "gpus", *words)
    assert (done.returncode != 0) == bool(done.stderr), done.stderr
    return done.stderr


def lines(text: str) -> dict[str, str]:
    """What is said of each key."""
    return dict(re.findall(r"^  ([\w.]+): (.+)$", text, re.MULTILINE))


def of(key: str, text: str) -> str:
    """What is said of a key, or else of the part that it belongs to."""
    told = lines(text)
    return told.get(key) or told[key.partition(".")[0]]


def given(keys: list[str]) -> list[str]:
    return [word for key in keys for word in ("--set", VALUES.get(key, f"{key}=x"))]


APART = ("config.map", "devicePlugin.enabled")
"""What is not set together with `config.name`, or with other keys below `devicePlugin`."""


def test_values_of_the_device_plugin_are_taken_or_refused_as_the_page_says(helm: str) -> None:
    table = dict(rows())
    assert len(table) == 42
    for keys in ([key for key in table if key not in APART], *([key] for key in APART)):
        taken = [key for key in keys if table[key].startswith(TAKEN)]
        assert said(helm, *given(taken)) == ""
        refused = [key for key in keys if key not in taken]
        complaint = said(helm, *given(refused))
        for key in refused:
            named = re.findall(r"`([^`]+)`", table[key])
            wanted = f"set {named[0]}" if named else table[key]
            if table[key].startswith("below"):
                wanted += f".{key}"
            assert of(key, complaint).startswith(wanted), key


def test_all_of_them_are_named_at_once(helm: str) -> None:
    keys = ("affinity", "migStrategy", "devicePlugin.config.name", "resources.limits.cpu", "mps")
    complaint = said(helm, *(word for key in keys for word in ("--set", f"{key}=x")))
    assert list(lines(complaint)) == [
        *("affinity", "devicePlugin.config.name", "migStrategy", "mps", "resources.limits")
    ]


def test_the_plugins_image_is_not_run_as_this_driver(helm: str) -> None:
    image = "image.repository=nvcr.io/nvidia/k8s-device-plugin"
    assert of("image.repository", said(helm, "--set", image)) == "name this driver's image"


def refused() -> set[str]:
    """The keys that the template refuses."""
    text = Path(FOLDER / "templates" / "validation.yaml").read_text()
    section = text.partition("$meant := dict\n")[2].partition("}}")[0]
    return set(re.findall(r'^  "([\w.]+)" "', section, re.MULTILINE))
