/*
 * Which control group is charged for a process's memory of a GPU, and who may have more of it.
 *
 * The driver has a flat map of limits; only the nearest group with an entry is charged, even with a
 * cleared one, and what was allocated before there was an entry is not counted. A GPU in MIG mode is
 * not charged.
 *
 * An entry of the map belongs to a directory's identity, and stays when the directory is removed.
 * The map of a GPU is lost with the GPU's initialisation: at its reset, with the kernel driver, and
 * when the last process closes a GPU without persistence mode.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

static bool same(const struct sim_group *one, const struct sim_group *other)
{
    return one->device == other->device && one->inode == other->inode;
}

struct sim_memory_limit *sim_nearest_limit(struct sim_state *state, unsigned int slot,
                                           const struct sim_lineage *lineage)
{
    for (unsigned int level = 0; level < lineage->depth; level++)
        for (unsigned int i = 0; i < SIM_MAX_MEMORY_LIMITS; i++) {
            struct sim_memory_limit *limit = &state->memory_limits[i];
            if (limit->active && limit->slot == slot &&
                same(&limit->group, &lineage->groups[level]))
                return limit;
        }
    return NULL;
}

/* What is charged to an entry of the map. */
uint64_t sim_charged(const struct sim_state *state, const struct sim_memory_limit *limit)
{
    uint64_t bytes = 0;
    for (unsigned int i = 0; i < SIM_MAX_ALLOCATIONS; i++) {
        const struct sim_allocation *one = &state->allocations[i];
        if (one->active && one->charged == (uint32_t)(limit - state->memory_limits) + 1)
            bytes += one->bytes;
    }
    return bytes;
}

/* Whether a limit leaves room above its use. */
static bool fits(uint64_t used, uint64_t more, uint64_t limit)
{
    return used <= limit && more <= limit - used;
}

/* Whether the limits allow an allocation, and what is charged. MEMORY: they do not. */
static nvmlReturn_t charge(struct sim_state *state, unsigned int slot,
                           const struct sim_lineage *lineage, uint64_t bytes, uint32_t *charged)
{
    *charged = 0;
    if (state->memory_backend == MEMORY_BACKEND_OFF)
        return NVML_SUCCESS;
    const struct sim_memory_limit *limit = sim_nearest_limit(state, slot, lineage);
    if (limit == NULL)
        return NVML_SUCCESS;
    *charged = (uint32_t)(limit - state->memory_limits) + 1;
    return fits(sim_charged(state, limit), bytes, limit->hard) ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

/* The place of a process on a GPU, or a free one; NULL when there is none. */
static struct sim_process *process_on(struct sim_state *state, unsigned int slot, uint32_t pid)
{
    const uint32_t whole = 0xffffffff;
    struct sim_process *free_place = NULL;
    for (unsigned int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *process = &state->processes[i];
        if (!process->active && free_place == NULL)
            free_place = process;
        if (process->active && process->slot == slot && process->pid == pid &&
            process->gpu_instance == whole)
            return process;
    }
    if (free_place != NULL)
        *free_place = (struct sim_process){.active = 0, .slot = slot, .gpu_instance = whole,
                                           .compute_instance = whole, .pid = pid};
    return free_place;
}

static nvmlReturn_t allocate(struct sim_state *state, unsigned int slot, uint32_t pid,
                             const struct sim_lineage *lineage, uint64_t bytes)
{
    struct sim_gpu *gpu = &state->gpus[slot];
    uint64_t taken = (uint64_t)(gpu->facts[FACT_MEMORY_USED] + gpu->facts[FACT_MEMORY_RESERVED]);
    if (!fits(taken, bytes, (uint64_t)gpu->facts[FACT_MEMORY_TOTAL]))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    const struct sim_lineage nobody = {.depth = 0};
    if (gpu->facts[FACT_MIG_CURRENT] == 1)
        lineage = &nobody;
    uint32_t charged;
    SIM_TRY(charge(state, slot, lineage, bytes, &charged));
    struct sim_process *process = process_on(state, slot, pid);
    for (unsigned int i = 0; i < SIM_MAX_ALLOCATIONS && process != NULL; i++) {
        struct sim_allocation *place = &state->allocations[i];
        if (place->active)
            continue;
        *place = (struct sim_allocation){.slot = slot, .pid = pid, .charged = charged,
                                         .bytes = bytes};
        __atomic_store_n(&place->active, 1, __ATOMIC_RELEASE);
        process->memory += bytes;
        __atomic_store_n(&process->active, 1, __ATOMIC_RELEASE);
        gpu->facts[FACT_MEMORY_USED] += (int64_t)bytes;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_SIZE;
}

/*
 * Not in NVML: a process in a control group (NULL: in none that is known) takes bytes of a GPU.
 * MEMORY: a limit forbids it. INSUFFICIENT_RESOURCES: the GPU has less left.
 */
NVML_EXPORT nvmlReturn_t nvmlSimulatorAllocate(const char *state_path, unsigned int slot,
                                               unsigned int pid, const char *group,
                                               unsigned long long bytes)
{
    struct sim_machine machine;
    struct sim_lineage lineage = {.depth = 0};
    SIM_REQUIRE(slot < SIM_MAX_GPUS);
    SIM_TRY(sim_open_machine(state_path, &machine));
    nvmlReturn_t result = NVML_SUCCESS;
    if (group != NULL)
        result = sim_open_lineage(machine.state, group, &lineage);
    int lock = result == NVML_SUCCESS ? sim_lock(state_path) : -1;
    if (lock >= 0) {
        result = allocate(machine.state, slot, pid, &lineage, bytes);
        close(lock);
    } else if (result == NVML_SUCCESS)
        result = NVML_ERROR_NO_PERMISSION;
    sim_close_lineage(&lineage);
    munmap(machine.state, sizeof *machine.state);
    return result;
}

/* A process in a group with a limit of its own sees at most that. */
void sim_cut_to_limit(unsigned int slot, nvmlMemory_v2_t *memory)
{
    struct sim_state *state = sim_state();
    struct sim_lineage lineage;
    if (state->memory_backend == MEMORY_BACKEND_OFF ||
        state->gpus[slot].facts[FACT_MIG_CURRENT] == 1 ||
        sim_open_own_lineage(state, &lineage) != NVML_SUCCESS)
        return;
    const struct sim_memory_limit *limit = sim_nearest_limit(state, slot, &lineage);
    uint64_t hard = limit != NULL ? limit->hard : NVML_DEVICE_MEMORY_LIMIT_MAX;
    uint64_t used = limit != NULL ? sim_charged(state, limit) : 0;
    sim_close_lineage(&lineage);
    if (hard >= memory->total)
        return;
    uint64_t left = used < hard ? hard - used : 0;
    memory->total = hard;
    memory->free = memory->free < left ? memory->free : left;
    memory->reserved = 0;
    memory->used = hard - memory->free;
}

/* A GPU that nobody had open is initialised: the driver's map of its limits is empty. */
void sim_forget_limits(struct sim_state *state, unsigned int slot)
{
    if (state->gpus[slot].facts[FACT_PERSISTENCE_MODE] == 1)
        return;
    for (unsigned int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (state->processes[i].active && state->processes[i].slot == slot)
            return;
    for (unsigned int i = 0; i < SIM_MAX_MEMORY_LIMITS; i++)
        if (state->memory_limits[i].slot == slot)
            __atomic_store_n(&state->memory_limits[i].active, 0, __ATOMIC_RELEASE);
}
