"""The errors of a local cluster, as one tree."""


class ClusterError(Exception):
    """A failure to show to the user: the cause first, then what to do."""

    exit_status = 1


class BinariesUnavailableError(ClusterError):
    """No folder, cache, download, package or compiler could provide a program."""

    exit_status = 3


class NotRootError(ClusterError):
    """Kubelet and containerd mount, create devices and cgroups: they need root."""

    exit_status = 4


class SourceError(ClusterError):
    """One source of programs failed; the text says why."""


class UnreachableError(SourceError):
    """The server of a source did not answer in time."""


class ChecksumError(SourceError):
    """A file differs from its published SHA-256 checksum; it was thrown away."""
