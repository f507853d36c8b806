"""Every error this driver raises on purpose, as one tree.

    DriverError
    ├── ConfigError      the user's config or claim is wrong: names field, value and choices
    ├── DeviceError      hardware or its driver refuses
    │   ├── SilenceError      it does not answer in time
    │   └── LostError         the GPU is out of reach until a person does something about it
    ├── ConflictError    someone else holds the device or the claim
    ├── TransientError   may pass by itself: wait and retry inside the call
    │   ├── HeldError         others have the GPU open, so its MIG mode cannot change
    │   └── UnavailableError  the API server is away, busy or slow; may say when to retry
    ├── ApiError         the API server refused; has the HTTP status
    │   ├── AccessError       401, 403: the credentials are unknown, or lack a permission
    │   ├── NotFoundError     404: this object does not exist (never: its API is not served)
    │   ├── StaleError        409: the object changed or exists already; read it again
    │   ├── GoneError         410: this resourceVersion is too old; list again
    │   └── InvalidError      400, 413, 422: the object breaks a rule; do not retry it
    ├── StateError       a file of our own on disk is damaged or cannot be written
    │   └── VersionError      a newer version of this driver wrote it: leave it alone
    └── SetupError       node or command line is not usable: ends the command with status 1

Messages are for people who read a pod's events: first the cause, then what to do.
Errors are caught in three places only: the gRPC method, a worker's loop, and main().
"""

from collections.abc import Callable, Iterable


class DriverError(Exception):
    """Any error this driver raises on purpose."""


class ConfigError(DriverError):
    """A claim or an opaque config cannot be accepted for its content."""


class DeviceError(DriverError):
    """NVML, a device node or the GPU driver refused."""


class BarredError(DeviceError):
    """No MIG device can be made on a GPU, for any claim and however long it waits."""


class SilenceError(DeviceError):
    """A GPU, its driver or a daemon of it did not answer in time, and may never."""


class LostError(DeviceError):
    """A GPU is out of reach, and does not come back by itself."""


class ConflictError(DriverError):
    """A device or a claim is held by someone else."""


class TransientError(DriverError):
    """The cause may pass by itself, so the same call can succeed later."""


class HeldError(TransientError):
    """The MIG mode of a GPU cannot be changed: other processes have the GPU open.

    `minor` is the GPU's minor number: N of /dev/nvidiaN.
    """

    def __init__(self, message: str, *, minor: int) -> None:
        super().__init__(message)
        self.minor = minor


class UnavailableError(TransientError):
    """The API server could not be reached, was too busy, or failed by itself.

    `retry_after` is how many seconds the server asked to wait (its Retry-After header), if any.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ApiError(DriverError):
    """The API server refused a request. `status` is the HTTP status code."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class AccessError(ApiError):
    """The API server does not accept the credentials, or they lack a permission (401, 403)."""


class NotFoundError(ApiError):
    """The named object does not exist (404 with a Status of reason NotFound)."""


class StaleError(ApiError):
    """The object was changed by someone else, or exists already (409)."""


class GoneError(ApiError):
    """The resourceVersion is older than what the server remembers (410)."""


class InvalidError(ApiError):
    """The object or the request breaks a rule of the API (400, 413, 422)."""


class StateError(DriverError):
    """A file this driver keeps on disk is damaged, or cannot be read or written."""


class VersionError(StateError):
    """A file this driver keeps was written by a newer version, which alone knows what it means."""


class SetupError(DriverError):
    """The node or the command line lacks something without which nothing can start."""


def try_all(works: Iterable[Callable[[], object]]) -> None:
    """Do each, even if others fail; then raise the first DriverError, if there was one."""
    errors: list[DriverError] = []
    for work in works:
        try:
            work()
        except DriverError as error:
            errors.append(error)
    if errors:
        raise errors[0]
