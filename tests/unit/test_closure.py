"""A process of a node loads nothing that only some nodes need."""

import subprocess
import sys

import closure
import pytest

SELDOM = (
    "dra_driver.admin",
    "dra_driver.bench",
    "dra_driver.kube.manifest",
    "dra_driver.shares.config",
    "dra_driver.shares.divide",
    "dra_driver.simulator",
    "dra_driver.usage",
    "kubernetes",
    "pydantic",
    "pydantic_core",
    "resource_nvidia_com.decode",
    "resource_nvidia_com.device_plugin",
    "resource_nvidia_com.model",
    "yaml",
)
"""What only some nodes need, by a setting or by what is there, and the others do not load."""


def loaded(process: str) -> list[str]:
    """The modules that a process has when it starts."""
    program = f"import sys, {', '.join(closure.PROCESSES[process])}\nprint(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


def is_seldom(module: str) -> bool:
    return any(f"{module}.".startswith(f"{one}.") for one in SELDOM)


@pytest.mark.parametrize("process", closure.PROCESSES)
def test_optional_code_is_not_loaded_by_all_nodes(process: str) -> None:
    assert not [name for name in loaded(process) if is_seldom(name)]
