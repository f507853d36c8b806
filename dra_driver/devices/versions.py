"""Versions of two numbers, as NVML gives them: of CUDA, and of a GPU's compute capability."""


def dotted(version: tuple[int, int]) -> str:
    """Return a version as people write it, such as 12.4."""
    major, minor = version
    return f"{major}.{minor}"
