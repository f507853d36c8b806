/*
 * The gate every call passes: is the library initialised, was a fault injected for this call, is
 * the handle one of ours, is the GPU still on the bus. And the two ways out: texts into buffers
 * of the caller's size, and facts written under the state file's lock.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "simulator.h"

static void sleep_milliseconds(uint32_t milliseconds)
{
    struct timespec left = {.tv_sec = milliseconds / 1000,
                            .tv_nsec = (long)(milliseconds % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0)
        ;
}

/* Takes one use of a fault. Where the state is read-only the count cannot go down: it applies. */
static bool take(struct sim_fault *fault)
{
    int64_t left = __atomic_load_n(&fault->remaining, __ATOMIC_ACQUIRE);
    while (left > 0 && sim_writable())
        if (__atomic_compare_exchange_n(&fault->remaining, &left, left - 1, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return true;
    return left != 0;
}

static bool concerns(const struct sim_fault *fault, const char *function, int slot)
{
    return (fault->slot < 0 || fault->slot == slot) &&
           (strcmp(fault->function, "*") == 0 ||
            strncmp(fault->function, function, sizeof fault->function) == 0);
}

/* With NVML_SIMULATOR_TRACE set every call is written to stderr. */
static void trace(const char *function, int slot)
{
    if (getenv("NVML_SIMULATOR_TRACE") != NULL)
        fprintf(stderr, "nvml simulator: %s on slot %d\n", function, slot);
}

/* The answer injected for this call, or SUCCESS; sleeps first when the fault says so. */
nvmlReturn_t sim_fault(const char *function, int slot)
{
    struct sim_state *state = sim_state();
    trace(function, slot);
    for (unsigned int i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &state->faults[i];
        if (__atomic_load_n(&fault->active, __ATOMIC_ACQUIRE) == 0 ||
            !concerns(fault, function, slot) || !take(fault))
            continue;
        if (fault->delay_ms > 0)
            sleep_milliseconds(fault->delay_ms);
        if (fault->code != NVML_SUCCESS)
            return (nvmlReturn_t)fault->code;
    }
    return NVML_SUCCESS;
}

/* The gate of calls that name no GPU. */
nvmlReturn_t sim_enter(const char *function)
{
    if (sim_state() == NULL)
        return NVML_ERROR_UNINITIALIZED;
    return sim_fault(function, -1);
}

/* The gate of calls on a GPU. A card that was pulled out answers like one that fell off. */
nvmlReturn_t sim_enter_device(const char *function, nvmlDevice_t device, struct sim_gpu **gpu)
{
    struct sim_state *state = sim_state();
    if (state == NULL)
        return NVML_ERROR_UNINITIALIZED;
    int index = sim_index_of(device);
    SIM_TRY(sim_fault(function, index < 0 ? -1 : (int)device->slot));
    if (index < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = &state->gpus[device->slot];
    if (!__atomic_load_n(&(*gpu)->present, __ATOMIC_ACQUIRE) ||
        __atomic_load_n(&(*gpu)->lost, __ATOMIC_ACQUIRE))
        return NVML_ERROR_GPU_IS_LOST;
    return NVML_SUCCESS;
}

/* Copies a text with its NUL. An empty text is a fact this card lacks. */
nvmlReturn_t sim_copy_text(const char *text, char *buffer, unsigned int length)
{
    SIM_REQUIRE(buffer != NULL);
    if (text[0] == '\0')
        return NVML_ERROR_NOT_SUPPORTED;
    size_t size = strlen(text) + 1;
    if (size > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(buffer, text, size);
    return NVML_SUCCESS;
}

/*
 * Writes one fact with the state file locked against other writers. The lock is taken on a
 * descriptor of its own, so that it also holds between threads and after a fork.
 */
nvmlReturn_t sim_write_fact(struct sim_gpu *gpu, enum sim_fact fact, int64_t value)
{
    if (gpu->facts[fact] == SIM_ABSENT)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!sim_writable())
        return NVML_ERROR_NO_PERMISSION;
    int file = open(sim_state_path(), O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = NVML_ERROR_UNKNOWN;
    if (flock(file, LOCK_EX) == 0) {
        __atomic_store_n(&gpu->facts[fact], value, __ATOMIC_RELEASE);
        result = NVML_SUCCESS;
    }
    close(file);
    return result;
}
