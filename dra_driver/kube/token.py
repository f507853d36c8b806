"""A bearer token in a file that someone else renews.

In: the path of a projected ServiceAccount token, or a kubeconfig's `tokenFile`. Bound tokens live
about an hour and the kubelet replaces the file before they expire. So, as in client-go, the file is
read again at least once a minute, and at once after an answer 401. The token itself never appears
in a log or an error.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from dra_driver.errors import SetupError

REREAD_SECONDS = 60.0
"""How long a token is used before the file is read again."""


class TokenFile:
    """Gives the current token; safe to use from many threads."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        """Remember where the token is. `clock` is monotonic, in seconds. Nothing is read yet."""
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._token: str | None = None
        self._read_at = 0.0

    def token(self) -> str:
        """Return the token, from memory if it was read less than a minute ago.

        If the file cannot be read at the moment, because it is being replaced, the last token may
        still be valid. Raises SetupError only if no token is known.
        """
        with self._lock:
            if self._token is None or self._clock() - self._read_at >= REREAD_SECONDS:
                self._read()
            if self._token is None:
                raise SetupError(
                    f"no token in {self._path}; check that the ServiceAccount token is mounted "
                    "(automountServiceAccountToken) and readable"
                )
            return self._token

    def header(self) -> str:
        """Return the value of the Authorization header."""
        return f"Bearer {self.token()}"

    def expire(self) -> None:
        """Read the file again at the next use: the server did not accept the token."""
        with self._lock:
            self._read_at = self._clock() - REREAD_SECONDS

    def _read(self) -> None:
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return
        if text:
            self._token = text
            self._read_at = self._clock()
