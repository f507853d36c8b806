"""A thread that works beside the kubelet's calls until it is told to stop."""

import threading


class Background:
    """What reconciling and reporting have in common: `_run` goes on until `_stop` is set."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; it looks at once."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Tell the thread to end and wait for it, at most `timeout` seconds."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        raise NotImplementedError
