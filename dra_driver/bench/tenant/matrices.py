"""Kernels of matrix products, in CUDA C++, and how much work they are. Pure.

Each block makes a square of the result from tiles in shared memory. Tensor cores are used by PTX's
`wmma`, because NVRTC has no headers of CUDA here. These kernels compare tenants and strategies;
they are slower than cuBLAS on the same card.

Factors are whole numbers from -3 to 3, and every sum of a product, also a partial one, is a whole
number below 2048, which is exact in half precision. So each number of the result is known, for any
precision and order: 16 times the sum over four neighbours, because all later ones cancel out.
"""

from dra_driver.bench.tenant import kernels
from dra_driver.bench.tenant.kernels import FLOAT, TILE, Grid, Program
from dra_driver.bench.workload import Precision, Workload, WorkloadKind

PRIMITIVES = r"""
#define KERNEL extern "C" __global__ void
#define INSIDE static __device__ __forceinline__

INSIDE unsigned short half_of(float value)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
"""
"""Functions that only a GPU has; tests define them for a CPU."""

TENSOR_PRIMITIVES = r"""
/* Tiles of 16 x 16 that the 32 threads of a warp hold together. */
typedef struct { unsigned of[8]; } Halves;
typedef struct { float of[8]; } Sums;

#define LOAD(which) asm volatile( \
    "wmma.load." which ".sync.aligned.row.m16n16k16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;" \
    : "=r"(to.of[0]), "=r"(to.of[1]), "=r"(to.of[2]), "=r"(to.of[3]), \
      "=r"(to.of[4]), "=r"(to.of[5]), "=r"(to.of[6]), "=r"(to.of[7]) \
    : "l"(from), "r"(stride) : "memory")

INSIDE Halves load_left(const unsigned short *from, unsigned stride)
{
    Halves to;
    LOAD("a");
    return to;
}

INSIDE Halves load_right(const unsigned short *from, unsigned stride)
{
    Halves to;
    LOAD("b");
    return to;
}

INSIDE void multiply_tiles(Sums *sums, const Halves *a, const Halves *b)
{
    float *c = sums->of;
    asm("wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%0,%1,%2,%3,%4,%5,%6,%7},"
        " {%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19,%20,%21,%22,%23},"
        " {%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
          "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
        : "r"(a->of[0]), "r"(a->of[1]), "r"(a->of[2]), "r"(a->of[3]),
          "r"(a->of[4]), "r"(a->of[5]), "r"(a->of[6]), "r"(a->of[7]),
          "r"(b->of[0]), "r"(b->of[1]), "r"(b->of[2]), "r"(b->of[3]),
          "r"(b->of[4]), "r"(b->of[5]), "r"(b->of[6]), "r"(b->of[7]));
}

INSIDE void store_sums(float *to, const Sums *sums, unsigned stride)
{
    const float *c = sums->of;
    asm volatile(
        "wmma.store.d.sync.aligned.row.m16n16k16.f32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8}, %9;"
        :: "l"(to), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]),
           "f"(c[4]), "f"(c[5]), "f"(c[6]), "f"(c[7]), "r"(stride) : "memory");
}
"""

COMMON = r"""
typedef unsigned long long Count;

/* Of the left factor all but the first 64 columns change their sign every four columns. */
INSIDE float number(Count row, Count column, unsigned is_left)
{
    float value = (row + column) % 4;
    return is_left && column >= 64 && column / 4 % 2 ? -value : value;
}

KERNEL numbers(float *to, Count count, unsigned columns, unsigned is_left)
{
    Count at = blockIdx.x * (Count)blockDim.x + threadIdx.x;
    for (; at < count; at += (Count)gridDim.x * blockDim.x)
        to[at] = number(at / columns, at % columns, is_left);
}

KERNEL halves(unsigned short *to, Count count, unsigned columns, unsigned is_left)
{
    Count at = blockIdx.x * (Count)blockDim.x + threadIdx.x;
    for (; at < count; at += (Count)gridDim.x * blockDim.x)
        to[at] = half_of(number(at / columns, at % columns, is_left));
}

/* Counts the numbers of a product that are wrong. */
KERNEL differing(float *wrong, const float *found, Count count, unsigned columns)
{
    Count at = blockIdx.x * (Count)blockDim.x + threadIdx.x;
    float mine = 0.0f;
    for (; at < count; at += (Count)gridDim.x * blockDim.x) {
        unsigned apart = (at / columns - at % columns) % 4;
        mine += found[at] != (apart == 0 ? 224.0f : apart == 2 ? 96.0f : 128.0f);
    }
    if (mine > 0.0f)
        atomicAdd(wrong, mine);
}

/* 64 x 64 numbers a block, 4 x 4 a thread. */
KERNEL gemm_fp32(float *to, const float *left, const float *right, unsigned columns, unsigned depth)
{
    __shared__ float a[16][64 + 4], b[16][64];
    unsigned x = threadIdx.x, y = threadIdx.y;
    Count row = blockIdx.y * 64, column = blockIdx.x * 64;
    float sums[4][4] = {{0.0f}};
    for (unsigned tile = 0; tile < depth; tile += 16) {
        for (unsigned at = y * 16 + x; at < 16 * 64; at += 256) {
            a[at % 16][at / 16] = left[(row + at / 16) * depth + tile + at % 16];
            b[at / 64][at % 64] = right[(Count)(tile + at / 64) * columns + column + at % 64];
        }
        __syncthreads();
#pragma unroll
        for (unsigned at = 0; at < 16; ++at)
#pragma unroll
            for (unsigned i = 0; i < 4; ++i)
#pragma unroll
                for (unsigned j = 0; j < 4; ++j)
                    sums[i][j] = fmaf(a[at][y * 4 + i], b[at][x * 4 + j], sums[i][j]);
        __syncthreads();
    }
    for (unsigned i = 0; i < 4; ++i)
        for (unsigned j = 0; j < 4; ++j)
            to[(row + y * 4 + i) * columns + column + x * 4 + j] = sums[i][j];
}
"""

TENSOR = r"""
/* 128 x 128 numbers a block, 32 x 64 a warp: 2 x 4 tiles. Eight halves are copied at once. */
KERNEL gemm_tensor(float *to, const unsigned short *left, const unsigned short *right,
                   unsigned columns, unsigned depth)
{
    __shared__ __align__(32) unsigned short a[128][32 + 8], b[32][128 + 8];
    unsigned own = threadIdx.y * 16 + threadIdx.x, warp = own / 32;
    Count row = blockIdx.y * 128, column = blockIdx.x * 128;
    Sums sums[2][4] = {{{{0.0f}}}};
    for (unsigned tile = 0; tile < depth; tile += 32) {
        for (unsigned at = own; at < 512; at += 256) {
            unsigned i = at / 4, j = at % 4 * 8;
            *(uint4 *)&a[i][j] = *(const uint4 *)&left[(row + i) * depth + tile + j];
            i = at / 16, j = at % 16 * 8;
            *(uint4 *)&b[i][j] = *(const uint4 *)&right[(tile + i) * (Count)columns + column + j];
        }
        __syncthreads();
#pragma unroll
        for (unsigned deep = 0; deep < 32; deep += 16) {
            Halves ones[2], others[4];
            for (unsigned i = 0; i < 2; ++i)
                ones[i] = load_left(&a[warp / 2 * 32 + i * 16][deep], 32 + 8);
            for (unsigned j = 0; j < 4; ++j)
                others[j] = load_right(&b[deep][warp % 2 * 64 + j * 16], 128 + 8);
            for (unsigned i = 0; i < 2; ++i)
                for (unsigned j = 0; j < 4; ++j)
                    multiply_tiles(&sums[i][j], &ones[i], &others[j]);
        }
        __syncthreads();
    }
    for (unsigned i = 0; i < 2; ++i)
        for (unsigned j = 0; j < 4; ++j) {
            Count place = (row + warp / 2 * 32 + i * 16) * columns + column;
            store_sums(&to[place + warp % 2 * 64 + j * 16], &sums[i][j], columns);
        }
}
"""

FIRST = 224.0
"""The first number of a product."""


def program_of(work: Workload) -> Program:
    """Return the kernels of a work: no others, because compiling takes time."""
    if work.kind is not WorkloadKind.GEMM:
        return Program(source=kernels.SOURCE, names=kernels.NAMES)
    names = ("fill", "numbers", "halves", "differing", "gemm_fp32")
    if work.precision is Precision.FP32:
        return Program(source=kernels.FILL + PRIMITIVES + COMMON, names=names)
    source = kernels.FILL + PRIMITIVES + TENSOR_PRIMITIVES + COMMON + TENSOR
    return Program(source=source, names=(*names, "gemm_tensor"), least=(7, 0))


def of_gemm(precision: Precision, rows: int, columns: int) -> Grid:
    """Return the grid of a product."""
    side = 128 if precision is Precision.TENSOR else 64
    return Grid(blocks=(columns // side, rows // side), threads=(TILE, TILE))


def element(precision: Precision) -> int:
    """Return the bytes of a number of a factor."""
    return FLOAT if precision is Precision.FP32 else FLOAT // 2


def gemm_gflop(rows: int, columns: int, depth: int) -> float:
    """Return the 10⁹ floating-point operations of a product."""
    return 2 * rows * columns * depth / 1e9
