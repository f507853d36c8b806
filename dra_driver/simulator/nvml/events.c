/*
 * Event sets. Events are in a ring in the shared state, each with a running number; a set
 * remembers for each GPU the number at its registration, and waiting sleeps on a futex in the
 * shared state until a new number appears.
 *
 * As with the real library, events from before the registration are not seen, waiting ends with
 * TIMEOUT when nothing came, and a registered GPU that is lost ends it with GPU_IS_LOST.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "facts.h"

#define MAX_EVENT_SETS 64
#define WAIT_SLICE_MS 1000 /* look again this often, in case a wake-up was lost */

struct registration {
    uint64_t types;
    uint64_t since;
};

struct sim_event_set {
    bool in_use;
    bool reported_lost[SIM_MAX_GPUS];
    uint64_t next;
    struct registration gpus[SIM_MAX_GPUS];
};

static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_event_set sets[MAX_EVENT_SETS];

static bool is_ours(nvmlEventSet_t set)
{
    return set >= sets && set < sets + MAX_EVENT_SETS && set->in_use;
}

static uint64_t next_event(void)
{
    return __atomic_load_n(&sim_state()->next_event, __ATOMIC_ACQUIRE);
}

/* Appends an event and wakes everyone who waits for one. The caller holds the writers' lock. */
void sim_emit(struct sim_state *state, const struct sim_event *event)
{
    struct sim_event *place = &state->events[state->next_event % SIM_MAX_EVENTS];
    *place = *event;
    place->sequence = state->next_event;
    __atomic_add_fetch(&state->next_event, 1, __ATOMIC_RELEASE);
    __atomic_add_fetch(&state->change, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &state->change, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* At the last nvmlShutdown; a thread that still waits finds its set gone. */
void sim_release_event_sets(void)
{
    pthread_mutex_lock(&sets_lock);
    memset(sets, 0, sizeof sets);
    pthread_mutex_unlock(&sets_lock);
}

NVML_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    SIM_TRY(sim_enter(__func__));
    SIM_REQUIRE(set != NULL);
    nvmlReturn_t result = NVML_ERROR_MEMORY;
    pthread_mutex_lock(&sets_lock);
    for (unsigned int i = 0; i < MAX_EVENT_SETS && result != NVML_SUCCESS; i++)
        if (!sets[i].in_use) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].in_use = true;
            sets[i].next = next_event();
            *set = &sets[i];
            result = NVML_SUCCESS;
        }
    pthread_mutex_unlock(&sets_lock);
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    SIM_TRY(sim_enter(__func__));
    pthread_mutex_lock(&sets_lock);
    bool ours = is_ours(set);
    if (ours)
        memset(set, 0, sizeof *set);
    pthread_mutex_unlock(&sets_lock);
    return ours ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device,
                                                          unsigned long long *types)
{
    SIM_ENTER(device);
    SIM_REQUIRE(types != NULL);
    SIM_FACT(*types, FACT_EVENT_TYPES);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                                  nvmlEventSet_t set)
{
    SIM_ENTER(device);
    uint64_t supported;
    SIM_FACT(supported, FACT_EVENT_TYPES);
    pthread_mutex_lock(&sets_lock);
    bool ours = is_ours(set);
    bool possible = (types & ~supported) == 0;
    if (ours && possible) {
        struct registration *registration = &set->gpus[device->slot];
        if (registration->types == 0)
            registration->since = next_event();
        registration->types |= types;
    }
    pthread_mutex_unlock(&sets_lock);
    if (!ours)
        return NVML_ERROR_INVALID_ARGUMENT;
    return possible ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static bool wanted(const struct sim_event_set *set, const struct sim_event *event)
{
    if (event->slot >= SIM_MAX_GPUS)
        return false;
    const struct registration *registration = &set->gpus[event->slot];
    return (registration->types & event->type) != 0 && event->sequence >= registration->since;
}

/* The next event this set wants; false when there is none yet. */
static bool take_event(struct sim_event_set *set, nvmlEventData_t *data)
{
    uint64_t end = next_event();
    if (end > set->next + SIM_MAX_EVENTS) /* the ring was overwritten: the oldest are gone */
        set->next = end - SIM_MAX_EVENTS;
    while (set->next < end) {
        struct sim_event event = sim_state()->events[set->next % SIM_MAX_EVENTS];
        set->next++;
        if (!wanted(set, &event))
            continue;
        data->device = sim_device_in_slot(event.slot);
        data->eventType = event.type;
        data->eventData = event.data;
        data->gpuInstanceId = event.gpu_instance;
        data->computeInstanceId = event.compute_instance;
        return true;
    }
    return false;
}

/* Whether a registered GPU was lost since this set last reported it. */
static bool take_loss(struct sim_event_set *set)
{
    for (unsigned int slot = 0; slot < SIM_MAX_GPUS; slot++) {
        const struct sim_gpu *gpu = &sim_state()->gpus[slot];
        bool lost = set->gpus[slot].types != 0 && (!gpu->present || gpu->lost);
        bool news = lost && !set->reported_lost[slot];
        set->reported_lost[slot] = lost;
        if (news)
            return true;
    }
    return false;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Sleeps until the word `change` differs from `seen`, at most `milliseconds`. */
static void sleep_until_changed(uint32_t seen, int64_t milliseconds)
{
    struct timespec limit = {.tv_sec = milliseconds / 1000,
                             .tv_nsec = (milliseconds % 1000) * 1000000};
    syscall(SYS_futex, &sim_state()->change, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* One look at the set: SUCCESS, GPU_IS_LOST, INVALID_ARGUMENT, or TIMEOUT for "not yet". */
static nvmlReturn_t look(nvmlEventSet_t set, nvmlEventData_t *data)
{
    nvmlReturn_t result = NVML_ERROR_TIMEOUT;
    pthread_mutex_lock(&sets_lock);
    if (sim_state() == NULL)
        result = NVML_ERROR_UNINITIALIZED;
    else if (!is_ours(set))
        result = NVML_ERROR_INVALID_ARGUMENT;
    else if (take_event(set, data))
        result = NVML_SUCCESS;
    else if (take_loss(set))
        result = NVML_ERROR_GPU_IS_LOST;
    pthread_mutex_unlock(&sets_lock);
    return result;
}

static nvmlReturn_t wait_for_event(nvmlEventSet_t set, nvmlEventData_t *data,
                                   unsigned int timeout_ms)
{
    SIM_REQUIRE(data != NULL);
    int64_t deadline = now_ms() + timeout_ms;
    for (;;) {
        struct sim_state *state = sim_state();
        if (state == NULL)
            return NVML_ERROR_UNINITIALIZED;
        uint32_t seen = __atomic_load_n(&state->change, __ATOMIC_ACQUIRE);
        nvmlReturn_t result = look(set, data);
        int64_t left = deadline - now_ms();
        if (result != NVML_ERROR_TIMEOUT || left <= 0)
            return result;
        sleep_until_changed(seen, left < WAIT_SLICE_MS ? left : WAIT_SLICE_MS);
    }
}

NVML_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
                                             unsigned int timeout_ms)
{
    SIM_TRY(sim_enter(__func__));
    return wait_for_event(set, data, timeout_ms);
}

NVML_EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data,
                                          unsigned int timeout_ms)
{
    SIM_TRY(sim_enter(__func__));
    return wait_for_event(set, data, timeout_ms);
}
