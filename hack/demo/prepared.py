"""Prerequisites of a demo, made before it is applied and removed afterwards.

On a real node other people do this: images in a registry, the RuntimeClass of the container
toolkit, MIG devices and MIG mode that an admin has set, and the node's share config in a ConfigMap.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import yaml
from testbed.commands import TestbedError, wait_until
from testbed.mig import switch_at_once, switch_by_reset
from testbed.nics import made_up_nics
from testbed.node import GpuNode

from demo.demos import Demo
from demo.screen import Screen

TEST_IMAGE = "registry.local/gpu-test:1"
"""The image that hack/cluster makes: busybox, bash and a C library."""

SHARES_NOTHING = "version: v1\n"
"""A share config as it is while no demo has one of its own."""


@contextmanager
def prepared(screen: Screen, node: GpuNode, demo: Demo, *, keep: bool) -> Iterator[None]:
    """Make what a demo needs, and remove it afterwards, unless `keep`."""
    _provide_images(screen, node, demo)
    _provide_runtime_classes(screen, node, demo)
    with ExitStack() as stack:
        for put in (_divisible, _made_by_hand, _shared, _set, _with_nics):
            stack.enter_context(_taken_back(put(screen, node, demo), keep=keep))
        yield
        if keep and demo.nics:
            screen.step("the simulated NICs end with this command; pods with one stay Terminating")


@contextmanager
def _taken_back(place: AbstractContextManager[None], *, keep: bool) -> Iterator[None]:
    place.__enter__()
    try:
        yield
    except TestbedError:
        with suppress(TestbedError):  # the earlier error is the one to report
            place.__exit__(None, None, None)
        raise
    if not keep:
        place.__exit__(None, None, None)


@contextmanager
def _divisible(screen: Screen, node: GpuNode, demo: Demo) -> Iterator[None]:
    """Turn MIG mode on, if it is off, as an admin does."""
    minors = demo.fit.switched
    if not minors:
        yield
        return
    switch = switch_by_reset if demo.fit.by_reset else switch_at_once
    switch(node, minors, on=True)
    names = ", ".join(f"gpu-{minor}" for minor in minors)
    how = ", by a reset," if demo.fit.by_reset else ""
    screen.step(f"admin: MIG mode turned on{how} for {names}")
    yield
    switch(node, minors, on=False)
    screen.step("admin: MIG mode turned off again")


@contextmanager
def _made_by_hand(screen: Screen, node: GpuNode, demo: Demo) -> Iterator[None]:
    """Make MIG devices as an admin does."""
    if not demo.made:
        yield
        return
    machine, minors = node.machine, demo.fit.divided
    uuids = [
        machine.mig("create", "--gpu", f"minor:{minor}", "--profile", profile)
        for minor in minors
        for profile in demo.made
    ]
    gpus = ", ".join(f"gpu-{minor}" for minor in minors)
    each = "each of " if len(minors) > 1 else ""
    screen.step(f"admin: made MIG devices on {each}{gpus}: {', '.join(demo.made)}")
    yield
    for uuid in uuids:
        machine.mig("destroy", "--device", uuid)
    screen.step("admin: destroyed them again")


@contextmanager
def _shared(screen: Screen, node: GpuNode, demo: Demo) -> Iterator[None]:
    """Give the node the demo's share config, while the driver runs."""
    if not demo.share_config:
        yield
        return
    node.share(demo.share_config)
    _wait_shared(node, shared=True)
    screen.step("share config applied; the running driver publishes shares")
    yield
    node.share(SHARES_NOTHING)
    _wait_shared(node, shared=False)
    screen.step("share config removed; no shares are published any more")


@contextmanager
def _set(screen: Screen, node: GpuNode, demo: Demo) -> Iterator[None]:
    """Give the driver the demo's settings, by a restart, and afterwards its own again."""
    if not demo.driver:
        yield
        return
    before = node.driver_settings
    node.restart_driver({**before, **demo.driver})
    names = ", ".join(f"{name}={value}" for name, value in demo.driver.items())
    screen.step(f"driver restarted with {names}")
    yield
    node.restart_driver(before)
    screen.step("driver restarted without it")


@contextmanager
def _with_nics(screen: Screen, node: GpuNode, demo: Demo) -> Iterator[None]:
    """Let the node have network cards, as dranet publishes them."""
    if not demo.nics:
        yield
        return
    stack = ExitStack()  # what is not removed stays as long as this command
    roots = stack.enter_context(made_up_nics(node, demo.nics))
    screen.step(f"no NICs and no dranet here: made-up ones are published, below {', '.join(roots)}")
    yield
    stack.close()
    screen.step("simulated NICs removed")


def _wait_shared(node: GpuNode, *, shared: bool) -> None:
    wait_until(
        lambda: any("-share-" in name for name in node.devices()) is shared,
        f"{'shares' if shared else 'no more shares'} to be published",
        timeout=30,
    )
    node.wait_published()


def _provide_images(screen: Screen, node: GpuNode, demo: Demo) -> None:
    """Give the test image the names that the demo's pods use, because there is no registry."""
    for image in sorted(demo.values_of("image")):
        full = _full_name(image)
        if full != TEST_IMAGE:
            node.cluster.name_test_image(full)
            screen.step(f"no registry here: the test image stands in for {image}")


def _provide_runtime_classes(screen: Screen, node: GpuNode, demo: Demo) -> None:
    """Make the RuntimeClasses that the demo's pods name, with the existing runtime."""
    for name in sorted(demo.values_of("runtimeClassName")):
        metadata = {"name": name}
        kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata}
        node.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(kind | {"handler": "runc"}))
        screen.step(f"no container toolkit here: runc stands in for the RuntimeClass {name}")


def _full_name(image: str) -> str:
    """Return an image's name as container runtimes keep it: with registry and namespace."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"
