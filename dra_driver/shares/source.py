"""The share config of this node, kept current by a separate thread.

In: a path, a default name, and the Node's labels. Out: the latest state for any thread, a call for
each change of it, and an Event on the Node about a config that cannot be used: `kubectl describe
node` shows it, where its author looks first.

A running node never loses its config by a mistake: if a file is gone, damaged, half written or has
a wrong name, the last good config stays in use, and the state says why the newest could not be
used. Files are compared by content, because a ConfigMap's volume is replaced behind symlinks, and
an editor may write in place.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.errors import ConfigError, StateError
from dra_driver.host.files import read_whole
from dra_driver.host.worker import Worker
from dra_driver.kube.events import Events
from dra_driver.kube.own_node import NodeFacts, OwnNode
from dra_driver.shares.choice import LABEL, Choice, choose
from dra_driver.shares.notes import KeptConfig, keep, kept

if TYPE_CHECKING:
    from resource_nvidia_com.device_plugin import NodeConfig

log = structlog.get_logger()


class ShareConfigTiming(Struct, frozen=True, kw_only=True):
    """Seconds."""

    look: float = 5.0
    """Between two checks of the file."""

    settle: float = 0.3
    """A changed file must look the same after this time, in case it is still being written."""


class ShareConfigState(Struct, frozen=True, kw_only=True):
    """What is known about this node's share config.

    `config` is the last good one; None until there is one, or if none is wanted. `origin` is where
    it comes from and why, for people. `problem` is why the newest could not be used, None if it
    was. It `is_known` once there has been a good config, or if none is wanted.
    """

    config: "NodeConfig | None"
    origin: str
    problem: str | None
    is_known: bool


_NO_PATH = ShareConfigState(config=None, origin="no --share-config", problem=None, is_known=True)
_NOT_YET = ShareConfigState(
    config=None, origin="", problem="the share config has not been read yet", is_known=False
)
_NO_LABELS_YET = replace(
    _NOT_YET, problem=f"the Node's labels are not known yet, and {LABEL} could name a share config"
)


class _Look(Struct, frozen=True, kw_only=True):
    """What one look found: a choice and the content of its file, or why there is none."""

    label: str
    choice: Choice | None = None
    data: bytes = b""
    problem: str | None = None


class ShareConfigs(Worker):
    """Reads this node's share config periodically."""

    def __init__(  # noqa: PLR0913 (where to look, whom to tell, and what to keep)
        self,
        path: Path | None,
        *,
        default: str,
        node: OwnNode,
        events: Events,
        on_change: Callable[[], None],
        kept: Path | None = None,
        timing: ShareConfigTiming = ShareConfigTiming(),
    ) -> None:
        """Take the paths; `start` begins. The Node's labels are used unless `path` is a file.

        `path` is a config, or a folder of named ones, and None if nothing is shared; `default` is
        the name of the config for a Node without a label (choice.py). `on_change` is called on the
        thread, without a lock, when `current` has changed; `events` are posted on the Node.
        The file `kept` keeps the last good config across a restart.
        """
        super().__init__("share-config")
        self._path = path
        self._kept = kept
        self._default = default
        self._on_change = on_change
        self._events = events
        self._timing = timing
        self._heeds_label = path is not None and not _is_file(path)
        self._state = _NO_LABELS_YET if self._heeds_label else _NOT_YET if path else _NO_PATH
        self._label: str | None = None if self._heeds_label else ""
        if self._heeds_label:
            node.listen(self._take_label)
        # Used only by the thread: the last look that counted, and the file of the last good config.
        self._last: _Look | None = None
        self._file: Path | None = None
        self._looked = threading.Event()

    def current(self) -> ShareConfigState:
        """Return the latest state. Never blocks."""
        return self._state

    def is_valid(self) -> bool:
        """Tell whether the newest config is in use."""
        return self._state.problem is None

    def wait_until_looked(self, timeout: float) -> bool:
        """Wait until the config has been looked for; return whether it has."""
        return self._path is None or self._looked.wait(timeout)

    def start(self) -> None:
        """Begin to look, if there is a path. Call it only once."""
        if self._path is not None:
            super().start()

    def _take_label(self, node: NodeFacts) -> None:
        label = node.labels.get(LABEL, "")
        if label != self._label:
            self._label = label
            self.ring()

    def _run(self) -> None:
        while not self._stop.is_set():
            # Before the Node's labels are known, any choice could be the wrong one.
            if self._path is not None and self._label is not None:
                self._look_once(self._path, self._label)
            self._wait(self._timing.look)

    def _look_once(self, path: Path, label: str) -> None:
        look = self._look(path, label)
        if look == self._last:
            return
        if self._last is not None and self._last.label == label:
            if self._stop.wait(self._timing.settle):
                return
            if self._look(path, label) != look:
                self.ring()
                return
        self._last = look
        self._take(look)

    def _look(self, path: Path, label: str) -> _Look:
        try:
            choice = self._choose(path, label)
            data = b"" if choice.file is None else _read_file(choice.file)
            return _Look(label=label, choice=choice, data=data)
        except ConfigError as error:
            return _Look(label=label, problem=str(error))
        except OSError as error:
            file = error.filename or path
            return _Look(label=label, problem=f"{file} cannot be read: {error.strerror or error}")

    def _choose(self, path: Path, label: str) -> Choice:
        if not self._heeds_label and path.is_dir():
            text = f"{path} was a file when the driver started and is a folder now"
            raise ConfigError(f"{text}: restart the driver")
        choice = choose(path, label=label, default=self._default)
        if choice.file is None and self._file is not None and not self._file.exists():
            raise ConfigError(_gone(self._file))
        return choice

    def _take(self, look: _Look) -> None:
        before = self._state
        if look.choice is None:
            state = replace(self._before(before), problem=look.problem)
        else:
            try:
                config = self._read(look.choice, look.data)
            except ConfigError as error:
                state = replace(self._before(before), problem=str(error))
            else:
                self._file = look.choice.file
                self._keep(KeptConfig(data=look.data, origin=look.choice.origin))
                state = ShareConfigState(
                    config=config, origin=look.choice.origin, problem=None, is_known=True
                )
        if state != before:
            _log_change(before, state)
            if state.problem:
                in_use = state.origin and f"{state.origin} is in use"
                self._events.post_on_node(
                    reason="ShareConfigNotTaken",
                    action="ReadingShareConfig",
                    note=f"the share config cannot be used: {state.problem}; "
                    f"{in_use or 'no GPU is offered without a config'}",
                )
        self._state = state
        self._looked.set()
        if state != before:
            self._on_change()

    def _before(self, state: ShareConfigState) -> ShareConfigState:
        """Return the config that stays in use if the newest is unusable, also after a restart."""
        last = None if state.is_known or self._kept is None else kept(self._kept)
        if last is None:
            return state
        try:
            config = _read_config(last.data, last.origin)
        except ConfigError:
            return state  # written by another version of this driver
        return ShareConfigState(config=config, origin=last.origin, problem=None, is_known=True)

    def _keep(self, config: KeptConfig) -> None:
        if self._kept is None:
            return
        try:
            keep(self._kept, config)
        except StateError as error:
            log.warning("share config not kept", reason=str(error))

    def _read(self, choice: Choice, data: bytes) -> "NodeConfig":
        if choice.file is None:
            return _read_config(b"", choice.origin)
        shared = self._state.config is not None and self._state.config.resources
        if shared and not data.strip():
            # A file is also empty between being opened for writing and being written.
            raise ConfigError(
                f"{choice.file} is empty: to share nothing from now on, write version: v1 into it"
            )
        return _read_config(data, str(choice.file))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # the first look reports the reason


def _read_config(data: bytes, name: str) -> "NodeConfig":
    # Only nodes with a share config load YAML and the config models.
    from dra_driver.shares.config import read_node_config  # noqa: PLC0415

    return read_node_config(data, name)


def _read_file(file: Path) -> bytes:
    read = read_whole(file)
    if read is None:
        raise ConfigError(_gone(file))
    return read[0]


def _gone(file: Path) -> str:
    return f"there is no {file}: put it there, or start the driver without it"


def _log_change(before: ShareConfigState, now: ShareConfigState) -> None:
    config = now.config
    if now.problem is not None or config is None:
        log.error("share config not used", reason=now.problem, holds=before.origin or None)
        return
    if (config, now.origin) == (before.config, before.origin):
        log.info("share config usable again", origin=now.origin)
        return
    log.info(
        "share config taken",
        origin=now.origin,
        shared_by=str(config.shared_by) if config.shared_by else None,
        resources=[
            f"{resource.replicas} of each {resource.name} as {resource.served_as}"
            for resource in config.resources
        ],
    )
    for warning in config.warnings:
        log.warning("share config has no effect in part", origin=now.origin, field=warning)
