"""Every error this driver raises on purpose, as one tree.

    DriverError
    ├── ConfigError      the user's config or claim is wrong: says field, value, what is allowed
    ├── DeviceError      hardware or its driver says no
    ├── ConflictError    someone else holds the device or the claim
    ├── TransientError   may pass by itself: wait and retry inside the call
    ├── StateError       a file of our own on disk is damaged or cannot be written
    └── SetupError       node or command line is not usable: ends the command with status 1

The message is read by the person who reads a pod's events: first the cause, then what to do.
Errors are caught in three places only: the gRPC method, a worker's loop, and main().
"""


class DriverError(Exception):
    """Any error this driver raises on purpose."""


class ConfigError(DriverError):
    """A claim or an opaque config cannot be accepted for its content."""


class DeviceError(DriverError):
    """NVML, a device node or the GPU driver refused."""


class ConflictError(DriverError):
    """A device or a claim is held by someone else."""


class TransientError(DriverError):
    """The cause may pass by itself, so the same call can succeed later."""


class StateError(DriverError):
    """A file this driver keeps on disk is damaged, or cannot be read or written."""


class SetupError(DriverError):
    """The node or the command line lacks something without which nothing can start."""
