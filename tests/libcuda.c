/* A libcuda.so.1 for tests of bench/tenant/cuda.py and tests/hardware/client.c: it takes the calls that a real one takes, counts memory
   in host memory, and works on the first element of each kernel's output. No GPU does any work, so
   nothing that it takes time for means anything. TEST_CUDA_MEMORY_MIB: how much memory there is.
   TEST_CUDA_STEP_US: how long a synchronisation takes. TEST_CUDA_WRONG: the kernel that computes nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
       NOT_FOUND = 500 };

static size_t used;
static int has_context;
static const char *const kernels[] = {
    "mark", "fill", "multiply_add", "triad", "product"};
enum { KERNELS = sizeof kernels / sizeof *kernels };

struct block { void *start; size_t size; };
static struct block blocks[4096];

static size_t total(void)
{
    const char *text = getenv("TEST_CUDA_MEMORY_MIB");
    return (size_t)(text ? atol(text) : 16384) << 20;
}

EXPORT int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = 0; return ordinal ? 101 : OK; }

EXPORT int cuDeviceGetName(char *name, int length, int device)
{
    (void)device;
    strncpy(name, "Test GPU", (size_t)length);
    return OK;
}

/* As MPS has it (mps3.py): lines of a file with processes, or of = and a partition, and the SMs. */
static int multiprocessors(void)
{
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY"), *own = getenv("CUDA_MPS_SM_PARTITION");
    char path[4096], word[4096];
    int sms, pid;
    snprintf(path, sizeof path, "%s/routes", pipe ? pipe : "");
    FILE *routes = fopen(path, "r");
    while (routes && fscanf(routes, "%4095s %d", word, &sms) == 2) {
        int is_ours = own && word[0] == '=' && !strcmp(word + 1, own);
        FILE *processes = word[0] == '=' ? NULL : fopen(word, "r");
        while (processes && fscanf(processes, "%d", &pid) == 1)
            is_ours |= pid == getpid();
        if (processes)
            fclose(processes);
        if (is_ours) {
            fclose(routes);
            return sms;
        }
    }
    if (routes)
        fclose(routes);
    return 132;
}

EXPORT int cuDeviceGetAttribute(int *value, int which, int device)
{
    (void)device;
    switch (which) {
    case 16: *value = multiprocessors(); return OK;
    case 75: *value = 9; return OK; /* compute capability */
    case 76: *value = 0; return OK;
    default: return INVALID_VALUE;
    }
}

EXPORT int cuDevicePrimaryCtxSetFlags(int device, unsigned flags)
{
    return device || flags != 4 ? INVALID_VALUE : OK; /* CU_CTX_SCHED_BLOCKING_SYNC */
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &used; return OK; }
EXPORT int cuDevicePrimaryCtxRelease(int device) { (void)device; has_context = 0; return OK; }

EXPORT int cuCtxSetCurrent(void *context)
{
    has_context = context == &used;
    return has_context ? OK : INVALID_CONTEXT;
}

EXPORT int cuStreamCreate(void **stream, unsigned flags)
{
    *stream = &has_context;
    return flags == 1 && has_context ? OK : INVALID_CONTEXT;
}

EXPORT int cuStreamSynchronize(void *stream)
{
    const char *text = getenv("TEST_CUDA_STEP_US");
    usleep(text ? (useconds_t)atol(text) : 1000);
    return stream == &has_context ? OK : INVALID_VALUE;
}

EXPORT int cuMemGetInfo(size_t *left, size_t *all) { *left = total() - used; *all = total(); return OK; }

EXPORT int cuMemAlloc(uint64_t *address, size_t size)
{
    if (!has_context)
        return INVALID_CONTEXT;
    if (used + size > total())
        return OUT_OF_MEMORY;
    for (size_t at = 0; at < sizeof blocks / sizeof *blocks; ++at)
        if (!blocks[at].start) {
            blocks[at] = (struct block){calloc(1, size), size};
            used += size;
            *address = (uint64_t)(uintptr_t)blocks[at].start;
            return blocks[at].start ? OK : OUT_OF_MEMORY;
        }
    return OUT_OF_MEMORY;
}

static struct block *block_of(uint64_t address)
{
    for (size_t at = 0; at < sizeof blocks / sizeof *blocks; ++at)
        if (blocks[at].start && (uint64_t)(uintptr_t)blocks[at].start == address)
            return &blocks[at];
    return NULL;
}

EXPORT int cuMemFree(uint64_t address)
{
    struct block *block = block_of(address);
    if (!block)
        return INVALID_VALUE;
    used -= block->size;
    free(block->start);
    block->start = NULL;
    return OK;
}

EXPORT int cuMemcpyDtoH(void *to, uint64_t from, size_t size)
{
    struct block *block = block_of(from);
    if (!block || size > block->size)
        return INVALID_VALUE;
    memcpy(to, block->start, size);
    return OK;
}

EXPORT int cuModuleLoadData(void **module, const char *image)
{
    *module = (void *)kernels;
    return memcmp(image, "\177ELF", 4) && memcmp(image, ".version", 8) ? INVALID_IMAGE : OK;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    for (size_t at = 0; at < KERNELS; ++at)
        if (module == (void *)kernels && !strcmp(name, kernels[at])) {
            *function = (void *)&kernels[at];
            return OK;
        }
    return NOT_FOUND;
}

/* Arguments as the kernels of dra_driver/bench/tenant/kernels.py have them. */
static int run(const char *name, void **arguments, unsigned blocks_x, unsigned threads_x)
{
    float *out = *(float **)arguments[0];
    struct block *block = block_of((uint64_t)(uintptr_t)out);
    size_t room = block ? block->size / sizeof *out : 0;
    if (!strcmp(name, "mark")) { /* of tests/hardware/client.c */
        if (threads_x > room)
            return INVALID_VALUE;
        for (unsigned at = 0; at < threads_x; ++at)
            ((uint32_t *)out)[at] = 2 * at + 1;
    } else if (!strcmp(name, "fill")) {
        unsigned long long count = *(unsigned long long *)arguments[2];
        if (count > room)
            return INVALID_VALUE;
        out[0] = *(float *)arguments[1];
    } else if (!strcmp(name, "multiply_add")) {
        float chains[4] = {0.0f, 2.0f, 0.5f, 1.5f}; /* as in kernels.py */
        float factor = *(float *)arguments[1], term = *(float *)arguments[2];
        unsigned rounds = *(unsigned *)arguments[3];
        if ((size_t)blocks_x * threads_x > room)
            return INVALID_VALUE;
        for (unsigned round = 0; round < rounds && round < 64; ++round)
            for (int at = 0; at < 4; ++at)
                chains[at] = fmaf(chains[at], factor, term);
        out[0] = chains[0] + chains[1] + chains[2] + chains[3];
    } else if (!strcmp(name, "triad")) {
        const float *one = *(float **)arguments[1], *other = *(float **)arguments[2];
        if (*(unsigned long long *)arguments[4] > room)
            return INVALID_VALUE;
        out[0] = one[0] + *(float *)arguments[3] * other[0];
    } else {
        const float *one = *(float **)arguments[1], *other = *(float **)arguments[2];
        unsigned width = *(unsigned *)arguments[3];
        if ((size_t)width * width > room || blocks_x * threads_x != width)
            return INVALID_VALUE;
        out[0] = one[0] * other[0];
    }
    return OK;
}

EXPORT int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned wide,
                          unsigned high, unsigned deep, unsigned shared, void *stream,
                          void **arguments, void **extra)
{
    if (!x || !y || z != 1 || !wide || !high || deep != 1 || shared || extra ||
        wide * high > 1024 || (stream && stream != &has_context))
        return INVALID_VALUE;
    const char *name = *(const char **)function, *wrong = getenv("TEST_CUDA_WRONG");
    if (wrong && !strcmp(wrong, name))
        return OK;
    return run(name, arguments, x, wide);
}

/* As programs link them that ask for no version. */
EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    *context = &used;
    has_context = 1;
    return device || flags != 4 ? INVALID_VALUE : OK;
}
EXPORT int cuCtxSynchronize(void) { return has_context ? OK : INVALID_CONTEXT; }
EXPORT int cuMemGetInfo_v2(size_t *left, size_t *all) { return cuMemGetInfo(left, all); }
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) { return cuMemAlloc(address, size); }
EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { return cuMemcpyDtoH(to, from, size); }

/* NVRTC asks for it when a libcuda is there. */
EXPORT int cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                               void *status)
{
    (void)version, (void)flags, (void)status;
    Dl_info self;
    dladdr((void *)&cuGetProcAddress_v2, &self);
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    *function = dlsym(library, name);
    return *function ? OK : NOT_FOUND;
}
