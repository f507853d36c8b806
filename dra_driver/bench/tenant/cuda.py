"""CUDA: the only adapter to it, by NVIDIA's own bindings of the driver's interface and of NVRTC.

In: kernels' source, sizes, launches. Out: memory, compiled kernels, and errors of our own tree
with CUDA's own words. A container needs the driver's libcuda.so.1 and the dependencies of
dra_driver/bench, but no toolkit (decision 20). Kernels are compiled for the card; for one that this
NVRTC does not know, to PTX, from which the driver makes code. In tests, NVRTC compiles every
kernel, and a libcuda of the tests carries the calls out.
"""

import ctypes
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from cuda.bindings import driver, nvrtc

from dra_driver.bench.tenant.device import Argument, RefusedError
from dra_driver.bench.tenant.kernels import NAMES, SOURCE, Grid
from dra_driver.errors import DeviceError

_DRIVER = "libcuda.so.1"


class Gpu:
    """The first device that this process sees, with a context. For one thread."""

    def __init__(self) -> None:
        """Build it; CUDA is not called yet."""
        self._device: Any = None
        self._stream: Any = None
        self._functions: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Make a context."""
        # By default kernels are loaded at their first launch: too late if all memory is taken.
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
        try:
            _done(driver.cuInit(0), "cuInit")
        except RuntimeError as error:  # of cuda-bindings: a library or a function is missing
            raise DeviceError(
                f"{_DRIVER} cannot be used ({_on_one_line(error)}); run this where the GPU"
                " driver's libraries are, such as in a container with a claim for a GPU"
            ) from error
        self._device = _done(driver.cuDeviceGet(0), "cuDeviceGet")
        # Waiting tenants must not keep CPU cores busy: there are many of them.
        flags = driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC
        _done(driver.cuDevicePrimaryCtxSetFlags(self._device, int(flags)), "set context flags")
        context = _done(driver.cuDevicePrimaryCtxRetain(self._device), "cuDevicePrimaryCtxRetain")
        _done(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        self._stream = _done(
            driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)),
            "cuStreamCreate",
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the context, and all memory with it."""
        driver.cuDevicePrimaryCtxRelease(self._device)

    def compile(self) -> None:
        """Compile the kernels for this device, and load them."""
        known = driver.CUdevice_attribute
        capability = (
            self._attribute(known.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(known.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        image = ctypes.create_string_buffer(compiled(SOURCE, capability))
        module = _done(driver.cuModuleLoadData(ctypes.addressof(image)), "cuModuleLoadData")
        for name in NAMES:
            function = _done(driver.cuModuleGetFunction(module, name.encode()), f"find {name}")
            self._functions[name] = function

    def allocate(self, size: int) -> int:
        """Allocate memory, and return its address. Raises RefusedError if there is less."""
        return int(_done(driver.cuMemAlloc(size), f"cuMemAlloc of {size >> 20} MiB"))

    def launch(self, name: str, grid: Grid, *arguments: Argument) -> None:
        """Start a kernel, after those that were started before."""
        values = tuple(value for value, _ in arguments)
        types = tuple(kind for _, kind in arguments)
        stream, none = self._stream, 0
        size = (*grid.blocks, 1, *grid.threads, 1)
        _done(
            driver.cuLaunchKernel(self._functions[name], *size, 0, stream, (values, types), none),
            f"launch of {name}",
        )

    def wait(self) -> None:
        """Wait for all that was started."""
        _done(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

    def read(self, address: int, floats: int) -> Sequence[float]:
        """Return numbers from GPU memory."""
        buffer = (ctypes.c_float * floats)()
        size = ctypes.sizeof(buffer)
        source = driver.CUdeviceptr(address)
        _done(driver.cuMemcpyDtoH(ctypes.addressof(buffer), source, size), "cuMemcpyDtoH")
        return tuple(buffer)

    def _attribute(self, which: Any) -> int:
        return int(_done(driver.cuDeviceGetAttribute(which, self._device), "cuDeviceGetAttribute"))


def compiled(source: str, capability: tuple[int, int]) -> bytes:
    """Return code for cards of a compute capability."""
    try:
        known = _done(nvrtc.nvrtcGetSupportedArchs(), "nvrtcGetSupportedArchs")
    except RuntimeError as error:
        raise DeviceError(
            f"NVRTC cannot be used ({_on_one_line(error)}): in a checkout, run"
            " `pip install -e '.[bench]'`"
        ) from error
    number = capability[0] * 10 + capability[1]
    is_known = number in known
    if not is_known and number < min(known):
        raise DeviceError(
            f"this NVRTC has no code for compute capability {capability[0]}.{capability[1]}; the"
            f" oldest that it knows is {min(known) // 10}.{min(known) % 10}"
        )
    below = max(each for each in known if each <= number)
    arch = f"sm_{number}" if is_known else f"compute_{below}"
    program = _done(
        nvrtc.nvrtcCreateProgram(source.encode(), b"bench.cu", 0, None, None), "nvrtcCreateProgram"
    )
    options = [f"--gpu-architecture={arch}".encode()]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        said = b" " * int(_done(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize"))
        nvrtc.nvrtcGetProgramLog(program, said)
        text = " ".join(said.rstrip(b"\0 ").decode(errors="replace").split())
        raise DeviceError(f"NVRTC cannot compile the kernels for {arch} ({code.name}): {text}")
    if is_known:
        image = b" " * int(_done(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize"))
        _done(nvrtc.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
    else:
        image = b" " * int(_done(nvrtc.nvrtcGetPTXSize(program), "nvrtcGetPTXSize"))
        _done(nvrtc.nvrtcGetPTX(program, image), "nvrtcGetPTX")
    return image


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _done(answer: tuple[Any, ...], doing: str) -> Any:
    """Return the values of a call's answer, without its code."""
    code, *rest = answer
    if int(code) != 0:
        kind = RefusedError if code.name == "CUDA_ERROR_OUT_OF_MEMORY" else DeviceError
        raise kind(f"{doing}: CUDA returned {code.name} ({int(code)})")
    return rest[0] if len(rest) == 1 else tuple(rest)
