"""Reading kept values in several threads at once, as calls of the kubelet do."""

import subprocess
import sys

from dra_driver.host.envelope import seal, unseal

RACE = """
import sys, threading, types
import msgspec
from dra_driver.host.envelope import value_of

sys.setswitchinterval(1e-6)
TEXT = '''
class Inner(Struct, tag="inner"):
    a: int

class Outer(Struct):
    one: "Inner"
    more: "tuple[Inner, ...]"
    name: "str | None" = None
'''
inner = {"type": "inner", "a": 1}
for number in range(40):
    module = types.ModuleType(f"m{number}")
    sys.modules[module.__name__] = module
    module.Struct = msgspec.Struct
    exec(TEXT, vars(module))
    together = threading.Barrier(4)

    def read():
        together.wait()
        value_of({"one": inner, "more": [inner]}, module.Outer, "a pair")

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_be_the_first_to_read_a_type_together() -> None:
    """msgspec 0.22 ends the process where one thread meets what another has half noted."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_half_of_a_surrogate_pair_is_kept() -> None:
    assert unseal(seal({"reason": "\ud800"})) == {"reason": "\ud800"}
