/* A CUDA client for `make hardware`: prints in lines `name value` what it has of a GPU, runs a
   kernel and takes memory. It only needs the libcuda.so.1 that the loader finds: no toolkit, no
   Python, so that it runs in any container with glibc.

   client MIB: takes so many MiB, and waits until the end of stdin. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MULTIPROCESSORS = 16, THREADS = 64, NOT_THERE = -1 };

/* out[i] = 2 * i + 1, for every card since Maxwell: the driver compiles it. */
static const char kernel[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry mark(.param .u64 out)\n{\n"
    ".reg .u32 %r<3>;\n.reg .u64 %d<4>;\n"
    "ld.param.u64 %d1, [out];\ncvta.to.global.u64 %d1, %d1;\n"
    "mov.u32 %r1, %tid.x;\nmul.wide.u32 %d2, %r1, 4;\nadd.u64 %d3, %d1, %d2;\n"
    "mad.lo.u32 %r2, %r1, 2, 1;\nst.global.u32 [%d3], %r2;\nret;\n}\n";

static void *cuda;
static uint64_t out;
static void *function;

/* Calls a function of libcuda by name; the program ends at the first that fails. */
#define CALL(name, types, ...)                                                                     \
    do {                                                                                           \
        int (*call) types = (int (*) types)dlsym(cuda, name);                                      \
        int code = call ? call(__VA_ARGS__) : NOT_THERE;                                           \
        if (code) {                                                                                \
            printf("failed %s %d\n", name, code);                                                  \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int run_kernel(void)
{
    uint32_t found[THREADS];
    void *arguments[] = {&out};
    CALL("cuLaunchKernel",
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
          void **, void **),
         function, 1, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL);
    CALL("cuCtxSynchronize", (void));
    CALL("cuMemcpyDtoH_v2", (void *, uint64_t, size_t), found, out, sizeof found);
    for (uint32_t at = 0; at < THREADS; at++)
        if (found[at] != 2 * at + 1) {
            printf("failed kernel %u\n", found[at]);
            return 1;
        }
    printf("kernel ran\n");
    return 0;
}

int main(int count, char **words)
{
    int device, multiprocessors;
    size_t left, total;
    uint64_t memory;
    void *context, *module;
    setvbuf(stdout, NULL, _IOLBF, 0);
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        printf("failed %s\n", dlerror());
        return 1;
    }
    CALL("cuInit", (unsigned), 0);
    CALL("cuDeviceGet", (int *, int), &device, 0);
    CALL("cuCtxCreate_v2", (void **, unsigned, int), &context, 4, device); /* blocking waits */
    printf("context made\n");
    CALL("cuDeviceGetAttribute", (int *, int, int), &multiprocessors, MULTIPROCESSORS, device);
    printf("multiprocessors %d\n", multiprocessors);
    CALL("cuMemGetInfo_v2", (size_t *, size_t *), &left, &total);
    printf("memory_mib %zu\n", total >> 20);
    CALL("cuModuleLoadData", (void **, const void *), &module, kernel);
    CALL("cuModuleGetFunction", (void **, void *, const char *), &function, module, "mark");
    CALL("cuMemAlloc_v2", (uint64_t *, size_t), &out, THREADS * sizeof(uint32_t));
    if (run_kernel())
        return 1;
    if (count > 1)
        CALL("cuMemAlloc_v2", (uint64_t *, size_t), &memory, strtoull(words[1], NULL, 10) << 20);
    printf("memory taken\n");
    while (getchar() != EOF)
        ;
    return 0;
}
