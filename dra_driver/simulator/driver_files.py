"""The GPU driver's files of a gathered node, by stand-ins at their places.

In: what a profile lists. Out: a `Userspace`: libraries with the sonames they had, links, programs,
firmware. libcuda and nvidia-smi are the simulator's; other programs print that they are not
simulated. A list may come from anybody, so no place in it may lead out of a driver root.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import pydantic

from dra_driver.simulator import build
from dra_driver.simulator.userspace import Userspace

_SMI = "nvidia-smi"
_NVML = "libnvidia-ml.so."
_CUDA = "libcuda.so."
_FOLDERS = "usr|lib|lib32|lib64|bin|sbin|opt|etc|glibc|run/opengl-driver|home/kubernetes"

DriverPath = Annotated[
    str,
    pydantic.StringConstraints(pattern=rf"^/({_FOLDERS})(/[\w+-][\w.+-]*)+$", max_length=200),
]
Name = Annotated[str, pydantic.StringConstraints(pattern=r"^[\w+-][\w.+-]*$", max_length=100)]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Library(_Part):
    """A library file, and its soname if it has one."""

    path: DriverPath
    soname: Name | None = None


class Link(_Part):
    """A link to another name in its folder."""

    path: DriverPath
    target: Name


class DriverFiles(_Part):
    """The files, by their places below the driver root; `folder` has NVML's library."""

    folder: DriverPath
    libraries: Annotated[list[Library], pydantic.Field(max_length=500)]
    links: Annotated[list[Link], pydantic.Field(max_length=1000)] = []
    programs: Annotated[list[DriverPath], pydantic.Field(max_length=50)] = []
    others: Annotated[list[DriverPath], pydantic.Field(max_length=100)] = []


def stand_ins(files: DriverFiles, cache: Path, environment: Mapping[str, str]) -> Userspace:
    """Return stand-ins for the files, except NVML's library.

    Raises SetupError if there is no C compiler.
    """
    made: dict[str, Path] = {}
    for library in files.libraries:
        name = library.path.rpartition("/")[2]
        if name.startswith(_NVML):
            continue
        if name.startswith(_CUDA):
            made[library.path[1:]] = build.compile_cuda(cache, environment)
        else:
            made[library.path[1:]] = build.compile_stand_in(library.soname, cache, environment)
    texts = {}
    for program in files.programs:
        name = program.rpartition("/")[2]
        if name == _SMI:
            made[program[1:]] = build.compile_program(f"{_SMI}.c", cache, environment)
        else:
            texts[program[1:]] = f"#!/bin/sh\necho '{name} is not simulated' >&2\nexit 1\n"
    for place in files.others:
        texts[place[1:]] = f"stand-in of the GPU simulator for {place}\n"
    links = {
        link.path[1:]: link.target
        for link in files.links
        if link.path[1:] not in made and not link.path.rpartition("/")[2].startswith(_NVML)
    }
    note = "stand-ins: for the files of the gathered node"
    return Userspace(real=False, version="", files=made, links=links, texts=texts, note=note)
