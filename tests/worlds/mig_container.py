"""The device nodes that a container with one MIG device finds in its /dev."""

from pathlib import Path


def mig_container_dev(folder: Path, minor: int, gpu_instance: int) -> Path:
    """Make /dev for a GPU instance of the GPU with this minor; return it.

    Its capabilities are those of the instance and of its one compute instance.
    """
    first = 3 + (minor * 15 + gpu_instance) * 9
    dev = folder / "dev"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidiactl", f"nvidia{minor}"):
        (dev / name).touch()
    for capability in (first, first + 1):
        (dev / "nvidia-caps" / f"nvidia-cap{capability}").touch()
    return dev
