/*
 * A stand-in for libcuda.so.1, enough for a program that makes a context and frees it. It computes
 * nothing. NVIDIA's own would find none of the simulated GPUs.
 *
 * A program that finds the socket `control` of a daemon in CUDA_MPS_PIPE_DIRECTORY is a client of
 * MPS; any other program runs without MPS, also one whose path is too long for a socket's address.
 * The devices are those that CUDA_VISIBLE_DEVICES names by UUID, up to the first missing one, or
 * all of the machine.
 *
 * Faults are injected as for NVML, by a function's name and a GPU (state.h): a slow cuInit is a
 * server that hangs, cuCtxCreate_v2 that fails with 2 is a GPU without free memory. The state is
 * mapped when the library is loaded, because a program may give up its rights later. A context
 * holds its GPU as a session of NVML does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

#define EXPORT __attribute__((visibility("default")))
#define DEFAULT_PIPE_DIRECTORY "/tmp/nvidia-mps"
#define PROHIBITED 2

/* CUresult, of cuda.h */
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
};

static struct sim_state *machine;
static int state_file = -1;
static bool writable;
static int visible[SIM_MAX_GPUS];
static int visible_count;
static bool initialised;
static int context; /* its address is the only context */

/* The state file beside this library. */
static bool find_state(char *path)
{
    Dl_info info;
    if (dladdr((void *)find_state, &info) == 0 || realpath(info.dli_fname, path) == NULL)
        return false;
    *strrchr(path, '/') = '\0';
    return sim_find_state(path);
}

__attribute__((constructor)) static void map_machine(void)
{
    char path[PATH_MAX];
    if (!find_state(path))
        return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    writable = file >= 0;
    if (!writable)
        file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    size_t size = SIM_STATE_OFFSET + sizeof *machine;
    if (file < 0 || fstat(file, &status) != 0 || status.st_size < (off_t)size)
        return;
    char *found =
        mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    state_file = file;
    if (found == MAP_FAILED)
        return;
    machine = (struct sim_state *)(found + SIM_STATE_OFFSET);
    if (machine->layout_version != SIM_LAYOUT_VERSION || machine->size != sizeof *machine)
        machine = NULL;
}

/* A slow call waits, unless the fault is cleared meanwhile. */
static void take_time(const struct sim_fault *fault)
{
    const struct timespec step = {.tv_nsec = 1000000L};
    struct timespec now, begun;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        nanosleep(&step, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (__atomic_load_n(&fault->active, __ATOMIC_ACQUIRE) != 0 &&
             (now.tv_sec - begun.tv_sec) * 1000L + (now.tv_nsec - begun.tv_nsec) / 1000000L <
                 (long)fault->delay_ms);
}

/* Takes one use of a fault, if it has any left; with a read-only state it strikes again. */
static bool strikes(struct sim_fault *fault, const char *function, int slot)
{
    if (__atomic_load_n(&fault->active, __ATOMIC_ACQUIRE) == 0 ||
        strncmp(fault->function, function, sizeof fault->function) != 0 ||
        (fault->slot >= 0 && fault->slot != slot))
        return false;
    int64_t left = __atomic_load_n(&fault->remaining, __ATOMIC_ACQUIRE);
    while (left > 0 && writable)
        if (__atomic_compare_exchange_n(&fault->remaining, &left, left - 1, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return true;
    return left != 0;
}

/* The answer injected for a call on a GPU, or success. */
static int fault_of(const char *function, int slot)
{
    for (int i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &machine->faults[i];
        if (!strikes(fault, function, slot))
            continue;
        if (fault->delay_ms > 0)
            take_time(fault);
        if (fault->code != CUDA_SUCCESS)
            return fault->code;
    }
    return CUDA_SUCCESS;
}

/* Whether a GPU has this UUID, or one of its MIG devices. */
static bool has_uuid(const struct sim_gpu *gpu, const char *uuid)
{
    if (strcmp(gpu->texts[TEXT_UUID], uuid) == 0)
        return true;
    for (int i = 0; i < SIM_MAX_GPU_INSTANCES; i++)
        for (int j = 0; gpu->instances[i].present && j < SIM_MAX_COMPUTE_INSTANCES; j++) {
            const struct sim_compute_instance *compute = &gpu->instances[i].compute[j];
            if (compute->present && strcmp(compute->uuid, uuid) == 0)
                return true;
        }
    return false;
}

static int slot_of(const char *uuid)
{
    for (int slot = 0; slot < SIM_MAX_GPUS; slot++)
        if (machine->gpus[slot].present && has_uuid(&machine->gpus[slot], uuid))
            return slot;
    return -1;
}

static void find_devices(void)
{
    visible_count = 0;
    const char *named = getenv("CUDA_VISIBLE_DEVICES");
    if (named == NULL) {
        for (int slot = 0; slot < SIM_MAX_GPUS; slot++)
            if (machine->gpus[slot].present)
                visible[visible_count++] = slot;
        return;
    }
    char names[SIM_MAX_GPUS * SIM_UUID_SIZE], *rest = NULL;
    snprintf(names, sizeof names, "%s", named);
    for (char *name = strtok_r(names, ",", &rest); name != NULL && visible_count < SIM_MAX_GPUS;
         name = strtok_r(NULL, ",", &rest)) {
        int slot = slot_of(name);
        if (slot < 0)
            return;
        visible[visible_count++] = slot;
    }
}

/* Connects to the daemon like a client, and disconnects, so that others are served, too. */
static bool reaches_daemon(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control",
                          folder != NULL && folder[0] != '\0' ? folder : DEFAULT_PIPE_DIRECTORY);
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return false;
    int end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (end < 0)
        return false;
    bool reached = connect(end, (const struct sockaddr *)&address, sizeof address) == 0;
    close(end);
    return reached;
}

EXPORT int cuInit(unsigned int flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (machine == NULL || machine->driver_loaded == 0)
        return CUDA_ERROR_NO_DEVICE;
    find_devices();
    if (visible_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    bool is_client = reaches_daemon();
    for (int i = 0; i < visible_count; i++) {
        /* Without MPS there is no server that could hang or refuse. */
        int code = is_client ? fault_of("cuInit", visible[i]) : CUDA_SUCCESS;
        if (code != CUDA_SUCCESS)
            return code;
    }
    initialised = true;
    return CUDA_SUCCESS;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device == NULL || ordinal < 0 || ordinal >= visible_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT int cuCtxCreate_v2(void **made, unsigned int flags, int device)
{
    (void)flags;
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (made == NULL || device < 0 || device >= visible_count)
        return CUDA_ERROR_INVALID_DEVICE;
    int slot = visible[device];
    int code = fault_of("cuCtxCreate_v2", slot);
    if (code != CUDA_SUCCESS)
        return code;
    if (machine->gpus[slot].facts[FACT_COMPUTE_MODE] == PROHIBITED)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    struct flock held = sim_holding((unsigned int)slot, F_RDLCK);
    fcntl(state_file, F_OFD_SETLK, &held);
    *made = &context;
    return CUDA_SUCCESS;
}

EXPORT int cuCtxDestroy_v2(void *given)
{
    if (given != &context)
        return CUDA_ERROR_INVALID_CONTEXT;
    for (int i = 0; i < visible_count; i++) {
        int code = fault_of("cuCtxDestroy_v2", visible[i]);
        if (code != CUDA_SUCCESS)
            return code;
    }
    struct flock none = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(state_file, F_OFD_SETLK, &none);
    return CUDA_SUCCESS;
}
