/*
 * The gate every call passes: is the library initialised, was a fault injected for this call, is
 * the handle one of ours, is the GPU still on the bus. And the two ways out: texts into buffers
 * of the caller's size, and facts written under the state file's lock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "simulator.h"

/* How many guarded functions this thread is in, and whether it dies when it leaves the last. */
static _Thread_local unsigned int guards;
static _Thread_local bool dying;

/* A slow call waits, unless the fault is cleared meanwhile: then it continues at once. */
static void take_time(const struct sim_fault *fault)
{
    const struct timespec step = {.tv_nsec = 1000000L};
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += fault->delay_ms / 1000;
    end.tv_nsec += (long)(fault->delay_ms % 1000) * 1000000L;
    do {
        nanosleep(&step, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (__atomic_load_n(&fault->active, __ATOMIC_ACQUIRE) != 0 &&
             (now.tv_sec - end.tv_sec) * 1000000000L + now.tv_nsec - end.tv_nsec < 0);
}

/* Whether this call is still before the fault. With a read-only state none is. */
static bool skip(struct sim_fault *fault)
{
    int64_t left = __atomic_load_n(&fault->skip, __ATOMIC_ACQUIRE);
    while (left > 0 && sim_writable())
        if (__atomic_compare_exchange_n(&fault->skip, &left, left - 1, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
            return true;
    return false;
}

/* Takes one use of a fault. With a read-only state the count cannot go down: it applies. */
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

/* Ends this process like kill -9. */
static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* A call outside any guarded function has no effect to wait for: it dies at once. */
static void strike_dead(const struct sim_fault *fault)
{
    if (fault->kill == KILL_BEFORE || (fault->kill == KILL_AFTER && guards == 0))
        die();
    if (fault->kill == KILL_AFTER)
        dying = true;
}

int sim_arrive(void)
{
    guards++;
    return 0;
}

void sim_leave(const int *unused)
{
    (void)unused;
    if (--guards == 0 && dying)
        die();
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
            !concerns(fault, function, slot) || skip(fault) || !take(fault))
            continue;
        if (fault->delay_ms > 0)
            take_time(fault);
        strike_dead(fault);
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

/* A pulled card answers like one that fell off the bus. */
nvmlReturn_t sim_check_bus(const struct sim_gpu *gpu)
{
    if (!__atomic_load_n(&gpu->present, __ATOMIC_ACQUIRE) ||
        __atomic_load_n(&gpu->lost, __ATOMIC_ACQUIRE))
        return NVML_ERROR_GPU_IS_LOST;
    return NVML_SUCCESS;
}

/* The gate of calls on a GPU or a MIG device. A MIG device that is gone is no valid handle. */
nvmlReturn_t sim_enter_any(const char *function, nvmlDevice_t device, struct sim_target *target)
{
    struct sim_state *state = sim_state();
    if (state == NULL)
        return NVML_ERROR_UNINITIALIZED;
    bool mig = sim_is_mig_handle(device);
    bool ours = mig || sim_index_of(device) >= 0;
    SIM_TRY(sim_fault(function, ours ? (int)device->slot : -1));
    SIM_REQUIRE(ours);
    *target = (struct sim_target){.gpu = &state->gpus[device->slot]};
    SIM_TRY(sim_check_bus(target->gpu));
    if (!mig)
        return NVML_SUCCESS;
    target->instance = &target->gpu->instances[device->gpu_instance];
    target->compute = &target->instance->compute[device->compute_instance];
    SIM_REQUIRE(__atomic_load_n(&target->instance->present, __ATOMIC_ACQUIRE) &&
                __atomic_load_n(&target->compute->present, __ATOMIC_ACQUIRE));
    return NVML_SUCCESS;
}

/* The gate of calls that only a whole GPU answers, not a MIG device. */
nvmlReturn_t sim_enter_device(const char *function, nvmlDevice_t device, struct sim_gpu **gpu)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(function, device, &target));
    *gpu = target.gpu;
    return target.compute == NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
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
 * Locks the state file against other writers; close the descriptor to unlock. It is one of its
 * own, so that the lock also holds between threads and after a fork. Negative: not permitted.
 */
int sim_lock(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return -1;
    while (flock(file, LOCK_EX) != 0)
        if (errno != EINTR) {
            close(file);
            return -1;
        }
    return file;
}

/* Writes one fact with the state file locked. */
nvmlReturn_t sim_write_fact(struct sim_gpu *gpu, enum sim_fact fact, int64_t value)
{
    if (gpu->facts[fact] == SIM_ABSENT)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!sim_writable())
        return NVML_ERROR_NO_PERMISSION;
    int lock = sim_lock(sim_state_path());
    if (lock < 0)
        return NVML_ERROR_NO_PERMISSION;
    __atomic_store_n(&gpu->facts[fact], value, __ATOMIC_RELEASE);
    close(lock);
    return NVML_SUCCESS;
}
