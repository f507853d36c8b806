"""Gives commands to an MPS control daemon, by a second run of NVIDIA's program.

In: the program, what it runs with, commands. Out: the lines of the daemon's reply. The program
finds the daemon by CUDA_MPS_PIPE_DIRECTORY. Its exit status says only whether it reached the
daemon, so the caller reads back what was set. The daemon answers one caller at a time, and turns
others away.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dra_driver.errors import DeviceError, SilenceError

ASK_SECONDS = 5.0


def ask_daemon(
    program: Path,
    commands: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    seconds: float = ASK_SECONDS,
) -> list[str]:
    """Send commands to a daemon, one in each line, and return the lines of its reply.

    Args:
        program: nvidia-cuda-mps-control.
        commands: as NVIDIA's MPS documentation has them.
        environment: all that the program has of it.
        log: where the daemon writes, for whoever reads the error.
        folder: where the program runs, if a relative path in the environment is to lead anywhere.
        seconds: how long the daemon has to answer.

    Raises:
        SilenceError: the daemon does not run, answers somebody else, or not in time.
        DeviceError: the program cannot be run.
    """
    try:
        done = subprocess.run(
            [program],
            input="".join(f"{command}\n" for command in commands),
            cwd=folder,
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SilenceError(
            f"the MPS control daemon did not answer in {seconds:g} s; see {log}"
        ) from error
    except OSError as error:
        raise DeviceError(f"cannot run {program}: {error.strerror}") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        raise SilenceError(f"the MPS control daemon does not answer ({said}); see {log}")
    return done.stdout.splitlines()
