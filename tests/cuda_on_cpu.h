/* Enough of CUDA for kernels of dra_driver/bench/tenant/matrices.py to run on a CPU: the
   threads of a block take turns, each until the next __syncthreads(). Slow, and exact. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define KERNEL void
#define INSIDE static inline
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))

typedef struct { unsigned x, y; } Place;
typedef struct { unsigned of[4]; } uint4;
static Place blockIdx, threadIdx, blockDim, gridDim;
static ucontext_t scheduler, *current;

static void __syncthreads(void) { swapcontext(current, &scheduler); }
static void atomicAdd(float *to, float value) { *to += value; }

INSIDE unsigned short half_of(float value)
{
    _Float16 half = (_Float16)value;
    unsigned short bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

INSIDE float float_of(unsigned bits)
{
    unsigned short low = (unsigned short)bits;
    _Float16 half;
    memcpy(&half, &low, sizeof half);
    return (float)half;
}

/* What a warp holds together, each thread holds all of here. */
typedef struct { float of[256]; } Halves;
typedef struct { float of[256]; } Sums;

INSIDE Halves load_left(const unsigned short *from, unsigned stride)
{
    Halves to;
    for (unsigned at = 0; at < 256; ++at)
        to.of[at] = float_of(from[at / 16 * stride + at % 16]);
    return to;
}

#define load_right load_left

INSIDE void multiply_tiles(Sums *sums, const Halves *a, const Halves *b)
{
    if ((threadIdx.y * 16 + threadIdx.x) % 32) /* the first thread of a warp stores it */
        return;
    for (unsigned row = 0; row < 16; ++row)
        for (unsigned at = 0; at < 16; ++at)
            for (unsigned column = 0; column < 16; ++column)
                sums->of[row * 16 + column] += a->of[row * 16 + at] * b->of[at * 16 + column];
}

INSIDE void store_sums(float *to, const Sums *sums, unsigned stride)
{
    if ((threadIdx.y * 16 + threadIdx.x) % 32)
        return;
    for (unsigned at = 0; at < 256; ++at)
        to[at / 16 * stride + at % 16] = sums->of[at];
}

typedef void (*Kernel)(void *, void *, void *, void *, void *);
static Kernel kernel;
static void **arguments;

static int is_over;

static void begin(void)
{
    kernel(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]);
    is_over = 1;
    __syncthreads();
}

/* Run all blocks of a kernel, whose arguments are pointers and whole numbers. */
void run(Kernel which, const unsigned *grid, void **values)
{
    enum { STACK = 1 << 17 };
    kernel = which, arguments = values;
    gridDim = (Place){grid[0], grid[1]}, blockDim = (Place){grid[2], grid[3]};
    unsigned threads = blockDim.x * blockDim.y;
    ucontext_t *contexts = calloc(threads, sizeof *contexts);
    char *stacks = malloc((size_t)threads * STACK);
    for (unsigned block = 0; block < gridDim.x * gridDim.y; ++block) {
        blockIdx = (Place){block % gridDim.x, block / gridDim.x};
        char *has_ended = calloc(threads, 1);
        for (unsigned at = 0; at < threads; ++at) {
            getcontext(&contexts[at]);
            contexts[at].uc_stack.ss_sp = stacks + (size_t)at * STACK;
            contexts[at].uc_stack.ss_size = STACK;
            makecontext(&contexts[at], begin, 0);
        }
        for (unsigned left = threads; left;)
            for (unsigned at = 0; at < threads; ++at) {
                if (has_ended[at])
                    continue;
                threadIdx = (Place){at % blockDim.x, at / blockDim.x};
                current = &contexts[at];
                is_over = 0;
                swapcontext(&scheduler, current);
                has_ended[at] = is_over;
                left -= is_over;
            }
        free(has_ended);
    }
    free(stacks);
    free(contexts);
}
