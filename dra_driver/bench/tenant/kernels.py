"""The kernels of the works, in CUDA C++, and how much work one launch of each is. Pure.

What a step does depends only on the work's settings, never on the card or on the SMs that a tenant
may use, so that steps of all tenants and strategies are the same work. Each kernel's result is
known beforehand; a tenant checks it, because a GPU that did not compute would be very fast.
"""

from msgspec import Struct

SOURCE = """
extern "C" __global__ void fill(float *to, float value, unsigned long long count)
{
    unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; at < count; at += (unsigned long long)gridDim.x * blockDim.x)
        to[at] = value;
}

/* Four independent chains a thread, so that no SM waits for one multiply-add to end. They begin
   around 1 and come to it, from both sides: their sum is 4 after any number of rounds. No compiler
   can take two of them for one. */
extern "C" __global__ void multiply_add(float *out, float factor, float term, unsigned rounds)
{
    float a = 0.0f, b = 2.0f, c = 0.5f, d = 1.5f;
    for (unsigned round = 0; round < rounds; ++round) {
        a = fmaf(a, factor, term);
        b = fmaf(b, factor, term);
        c = fmaf(c, factor, term);
        d = fmaf(d, factor, term);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d;
}

extern "C" __global__ void triad(float *to, const float *one, const float *other, float factor,
                                 unsigned long long count)
{
    unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; at < count; at += (unsigned long long)gridDim.x * blockDim.x)
        to[at] = one[at] + factor * other[at];
}

/* A square product by tiles of 16 x 16, divided by the width so that ones stay ones. */
extern "C" __global__ void product(float *to, const float *one, const float *other, unsigned width)
{
    __shared__ float left[16][16], right[16][16];
    unsigned row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (unsigned tile = 0; tile < width; tile += 16) {
        left[threadIdx.y][threadIdx.x] = one[row * width + tile + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = other[(tile + threadIdx.y) * width + column];
        __syncthreads();
        for (unsigned at = 0; at < 16; ++at)
            sum += left[threadIdx.y][at] * right[at][threadIdx.x];
        __syncthreads();
    }
    to[row * width + column] = sum / width;
}
"""

NAMES = ("fill", "multiply_add", "triad", "product")
FLOAT = 4
TILE = 16
THREADS = 256
COMPUTE_BLOCKS = 4096
CHAINS = 4
_MOST_BLOCKS = 65535


class Grid(Struct, frozen=True, kw_only=True):
    """How many blocks and threads a launch has."""

    blocks: tuple[int, int] = (1, 1)
    threads: tuple[int, int] = (THREADS, 1)


def over(count: int) -> Grid:
    """Return the grid of a kernel that walks over `count` elements."""
    return Grid(blocks=(min(_MOST_BLOCKS, max(1, -(-count // THREADS))), 1))


def of_product(width: int) -> Grid:
    """Return the grid of a matrix product."""
    return Grid(blocks=(width // TILE, width // TILE), threads=(TILE, TILE))


def compute_gflop(intensity: int) -> float:
    """Return the 10⁹ floating-point operations of one launch of `multiply_add`."""
    return 2 * CHAINS * intensity * COMPUTE_BLOCKS * THREADS / 1e9


def triad_gigabytes(count: int) -> float:
    """Return the 10⁹ bytes that one launch of `triad` reads and writes."""
    return 3 * FLOAT * count / 1e9
