/*
 * Making and destroying instances, and switching the mode: every change under the state file's
 * lock, with its files and an event for those who registered for one.
 *
 * Making and destroying takes time. Meanwhile other changes wait, and readers see the machine as it
 * was.
 *
 * A GPU instance can be destroyed when it has no compute instance left, a compute instance when no
 * process holds it. Cards up to Ampere keep a new mode pending until they are reset; newer ones
 * switch at once, unless something is on them, or another process has them open.
 */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mig.h"

#define EVENT_MIG_CONFIG_CHANGE 0x100
#define NO_INSTANCE 0xffffffffu

static void set_present(uint32_t *present, uint32_t value)
{
    __atomic_store_n(present, value, __ATOMIC_RELEASE);
}

static void take_time(const struct sim_machine *machine)
{
    unsigned int wait = machine->state->mig_change_ms;
    const struct timespec time = {.tv_sec = wait / 1000, .tv_nsec = (long)(wait % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

static void announce(const struct sim_machine *machine, const struct sim_instance *where)
{
    const struct sim_event event = {.type = EVENT_MIG_CONFIG_CHANGE,
                                    .slot = where->slot,
                                    .gpu_instance = where->gpu_instance,
                                    .compute_instance = where->compute_instance};
    sim_emit(machine->state, &event);
}

/* A process in a compute instance, in a GPU instance (NO_INSTANCE: any of its), or on a GPU. */
static bool is_held(const struct sim_state *state, const struct sim_instance *where)
{
    for (unsigned int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &state->processes[i];
        if (process->active && process->slot == where->slot &&
            (where->gpu_instance == NO_INSTANCE ||
             process->gpu_instance == where->gpu_instance) &&
            (where->compute_instance == NO_INSTANCE ||
             process->compute_instance == where->compute_instance))
            return true;
    }
    return false;
}

static nvmlReturn_t make_gpu_instance(const struct sim_machine *machine, unsigned int slot,
                                      unsigned int profile_id, const nvmlPlacement_t *wanted,
                                      unsigned int *id)
{
    struct sim_gpu *gpu = &machine->state->gpus[slot];
    if (gpu->facts[FACT_MIG_CURRENT] != 1)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct sim_mig_profile *profile = sim_profile_by_id(gpu, profile_id);
    unsigned int start;
    SIM_REQUIRE(profile != NULL);
    SIM_TRY(sim_find_place(gpu, profile, wanted, &start));
    take_time(machine);
    *id = sim_instance_id(gpu, start, profile->size);
    struct sim_gpu_instance *instance = &gpu->instances[*id];
    memset(instance, 0, sizeof *instance);
    instance->profile = (uint32_t)(profile - gpu->mig_profiles);
    instance->start = start;
    instance->size = profile->size;
    instance->changed_ms = sim_now_ms();
    set_present(&instance->present, 1);
    announce(machine, &(struct sim_instance){slot, *id, NO_INSTANCE});
    sim_settle_instance(machine, slot, *id);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_create_gpu_instance(const struct sim_machine *machine, unsigned int slot,
                                     unsigned int profile_id, const nvmlPlacement_t *wanted,
                                     unsigned int *id)
{
    int lock = sim_lock(machine->path);
    if (lock < 0)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = make_gpu_instance(machine, slot, profile_id, wanted, id);
    close(lock);
    if (result == NVML_SUCCESS)
        sim_settle_later(machine);
    return result;
}

/*
 * The MIG devices of a GPU are numbered in the order of their instances' ids, again whenever one is
 * made; a destroyed one leaves a hole.
 */
static void count_mig_devices(struct sim_gpu *gpu, const struct sim_compute_instance *made)
{
    uint32_t index = 0;
    for (unsigned int gi = 0; gi < SIM_MAX_GPU_INSTANCES; gi++)
        for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
            struct sim_compute_instance *compute = &gpu->instances[gi].compute[ci];
            if (compute == made || (gpu->instances[gi].present && compute->present))
                __atomic_store_n(&compute->mig_index, index++, __ATOMIC_RELEASE);
        }
}

static nvmlReturn_t make_compute_instance(const struct sim_machine *machine,
                                          const struct sim_instance *parent,
                                          unsigned int profile_id, const nvmlPlacement_t *wanted,
                                          unsigned int *id)
{
    struct sim_gpu *gpu = &machine->state->gpus[parent->slot];
    struct sim_gpu_instance *instance = &gpu->instances[parent->gpu_instance];
    struct sim_compute_profile profile;
    unsigned int start;
    SIM_REQUIRE(instance->present); /* gone while this call waited for the lock */
    SIM_REQUIRE(sim_compute_profile(gpu, sim_profile_of(gpu, parent->gpu_instance), profile_id,
                                    &profile));
    SIM_TRY(sim_find_compute_place(instance, &profile, wanted, &start));
    for (*id = 0; *id < SIM_MAX_COMPUTE_INSTANCES && instance->compute[*id].present;)
        (*id)++;
    if (*id == SIM_MAX_COMPUTE_INSTANCES)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    take_time(machine);
    struct sim_compute_instance *compute = &instance->compute[*id];
    compute->profile_id = profile.id;
    compute->start = start;
    compute->size = profile.slices;
    count_mig_devices(gpu, compute);
    sim_mig_uuid(gpu->texts[TEXT_UUID], parent->gpu_instance, start, compute->uuid);
    instance->changed_ms = sim_now_ms();
    set_present(&compute->present, 1);
    announce(machine, &(struct sim_instance){parent->slot, parent->gpu_instance, *id});
    sim_settle_instance(machine, parent->slot, parent->gpu_instance);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_create_compute_instance(const struct sim_machine *machine,
                                         const struct sim_instance *parent,
                                         unsigned int profile_id, const nvmlPlacement_t *wanted,
                                         unsigned int *id)
{
    int lock = sim_lock(machine->path);
    if (lock < 0)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = make_compute_instance(machine, parent, profile_id, wanted, id);
    close(lock);
    if (result == NVML_SUCCESS)
        sim_settle_later(machine);
    return result;
}

static nvmlReturn_t end_gpu_instance(const struct sim_machine *machine,
                                     const struct sim_instance *which)
{
    struct sim_gpu_instance *instance =
        &machine->state->gpus[which->slot].instances[which->gpu_instance];
    SIM_REQUIRE(instance->present);
    for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++)
        if (instance->compute[ci].present)
            return NVML_ERROR_IN_USE;
    take_time(machine);
    set_present(&instance->present, 0);
    announce(machine, &(struct sim_instance){which->slot, which->gpu_instance, NO_INSTANCE});
    sim_settle_instance(machine, which->slot, which->gpu_instance);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_destroy_gpu_instance(const struct sim_machine *machine,
                                      const struct sim_instance *instance)
{
    int lock = sim_lock(machine->path);
    if (lock < 0)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = end_gpu_instance(machine, instance);
    close(lock);
    return result;
}

static nvmlReturn_t end_compute_instance(const struct sim_machine *machine,
                                         const struct sim_instance *which)
{
    struct sim_gpu_instance *instance =
        &machine->state->gpus[which->slot].instances[which->gpu_instance];
    struct sim_compute_instance *compute = &instance->compute[which->compute_instance];
    SIM_REQUIRE(instance->present && compute->present);
    if (is_held(machine->state, which))
        return NVML_ERROR_IN_USE;
    take_time(machine);
    set_present(&compute->present, 0);
    announce(machine, which);
    sim_settle_instance(machine, which->slot, which->gpu_instance);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_destroy_compute_instance(const struct sim_machine *machine,
                                          const struct sim_instance *compute)
{
    int lock = sim_lock(machine->path);
    if (lock < 0)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = end_compute_instance(machine, compute);
    close(lock);
    return result;
}

static bool has_instances(const struct sim_gpu *gpu)
{
    for (unsigned int gi = 0; gi < SIM_MAX_GPU_INSTANCES; gi++)
        if (gpu->instances[gi].present)
            return true;
    return false;
}

/* Why a new mode cannot be applied yet, or SUCCESS. */
static nvmlReturn_t obstacle(const struct sim_machine *machine, unsigned int slot)
{
    const struct sim_gpu *gpu = &machine->state->gpus[slot];
    if (gpu->facts[FACT_MIG_RESET_TO_SWITCH] == 1)
        return NVML_ERROR_RESET_REQUIRED;
    const struct sim_instance whole = {slot, NO_INSTANCE, NO_INSTANCE};
    bool used = has_instances(gpu) || is_held(machine->state, &whole) ||
                sim_held_by_others(machine->path, slot);
    return used ? NVML_ERROR_IN_USE : NVML_SUCCESS;
}

/* The mode is noted as pending in any case; *status says whether it also is the current one. */
nvmlReturn_t sim_set_mig_mode(const struct sim_machine *machine, unsigned int slot,
                              unsigned int mode, nvmlReturn_t *status)
{
    int lock = sim_lock(machine->path);
    if (lock < 0)
        return NVML_ERROR_NO_PERMISSION;
    int64_t *facts = machine->state->gpus[slot].facts;
    bool change = facts[FACT_MIG_CURRENT] != mode;
    __atomic_store_n(&facts[FACT_MIG_PENDING], mode, __ATOMIC_RELEASE);
    *status = change ? obstacle(machine, slot) : NVML_SUCCESS;
    if (change && *status == NVML_SUCCESS) {
        __atomic_store_n(&facts[FACT_MIG_CURRENT], mode, __ATOMIC_RELEASE);
        facts[FACT_COMPUTE_MODE] = 0; /* switching resets the card */
        facts[FACT_POWER_LIMIT] = facts[FACT_POWER_DEFAULT];
        if (facts[FACT_TIME_SLICE] != SIM_ABSENT)
            facts[FACT_TIME_SLICE] = 0;
        announce(machine, &(struct sim_instance){slot, NO_INSTANCE, NO_INSTANCE});
    }
    close(lock);
    return NVML_SUCCESS;
}
