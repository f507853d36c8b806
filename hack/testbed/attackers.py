"""A pod whose root container attacks everything that it can reach (testbed/attacks.py).

The container has the rights of any root container, and this machine's Python mounted read-only.
"""

import sys
import sysconfig
from pathlib import Path

from testbed.api import Object
from testbed.pods import container

_TOOLS, _NODE, _ATTACKS = "/tools", "/node", "/attacks.py"


def attackers_pod(*claims: str, **resources: object) -> Object:
    """Return containers and volumes of a pod that can attack, with claims of these names."""
    attacker = container("ctr", {"claims": [{"name": name} for name in claims], **resources})
    folders = {
        "tools": (sys.base_prefix, _TOOLS),
        "node": ("/usr", _NODE),
        "attacks": (str(Path(__file__).with_name("attacks.py")), _ATTACKS),
    }
    attacker["volumeMounts"] = [
        {"name": name, "mountPath": inside, "readOnly": True}
        for name, (_, inside) in folders.items()
    ]
    attacker["securityContext"] = {"runAsUser": 0}
    volumes = [{"name": name, "hostPath": {"path": path}} for name, (path, _) in folders.items()]
    return {"containers": [attacker], "volumes": volumes}


def attack(name: str, *words: str) -> tuple[str, ...]:
    """Return the command for an attack in the container; it prints the result as JSON."""
    multiarch = str(sysconfig.get_config_var("MULTIARCH") or "")
    libraries = ("/usr/local/nvidia/lib64", f"{_TOOLS}/lib", f"{_NODE}/lib/{multiarch}")
    env = (f"PYTHONHOME={_TOOLS}", f"LD_LIBRARY_PATH={':'.join(libraries)}")
    return ("env", *env, f"{_TOOLS}/bin/{python()}", _ATTACKS, name, *words)


def python() -> str:
    """The name of the program in which attacks run."""
    return f"python3.{sys.version_info.minor}"
