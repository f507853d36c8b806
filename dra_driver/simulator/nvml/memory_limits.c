/*
 * NVML's calls for the memory limits of a control group on a GPU, from driver R615 on; a machine
 * with an older driver has a library without them. memory_rules.c says what a limit does.
 *
 * The driver keeps the limits (backend misc), with silent traps, which are simulated, too: a limit
 * below the use is refused, and the old one stays; a group without a limit looks like a GPU without
 * support; a GPU in MIG mode accepts limits, and ignores them. Where the kernel keeps them (dmem) is
 * not simulated.
 */
#include <unistd.h>

#include "facts.h"
#include "memory.h"

struct limits {
    uint64_t soft, hard, used;
};

static nvmlReturn_t get_limits(struct sim_state *state, unsigned int slot,
                             const struct sim_lineage *lineage, struct limits *limits)
{
    const struct sim_memory_limit *limit = sim_nearest_limit(state, slot, lineage);
    if (limit == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *limits = (struct limits){limit->soft, limit->hard, sim_charged(state, limit)};
    return NVML_SUCCESS;
}

static nvmlReturn_t write_limits(struct sim_state *state, unsigned int slot,
                             const struct sim_lineage *lineage, const struct limits *wanted)
{
    const struct sim_lineage own = {.depth = 1, .groups = {lineage->groups[0]}};
    struct sim_memory_limit *limit = sim_nearest_limit(state, slot, &own);
    for (unsigned int i = 0; i < SIM_MAX_MEMORY_LIMITS && limit == NULL; i++)
        if (!state->memory_limits[i].active) {
            limit = &state->memory_limits[i];
            *limit = (struct sim_memory_limit){.slot = slot, .group = lineage->groups[0]};
        }
    if (limit == NULL)
        return NVML_ERROR_MEMORY;
    if (limit->active)
        SIM_REQUIRE(wanted->hard >= sim_charged(state, limit));
    limit->soft = wanted->soft;
    limit->hard = wanted->hard;
    __atomic_store_n(&limit->active, 1, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device,
                                                      nvmlGetMemoryLimits_v1_t *answer)
{
    SIM_ENTER(device);
    SIM_REQUIRE(answer != NULL && answer->nameSpace != NULL);
    struct sim_state *state = sim_state();
    if (state->memory_backend == MEMORY_BACKEND_OFF)
        return NVML_ERROR_NOT_SUPPORTED;
    struct sim_lineage lineage;
    struct limits limits = {0, 0, 0};
    SIM_TRY(sim_open_lineage(state, answer->nameSpace, &lineage));
    nvmlReturn_t result = get_limits(state, device->slot, &lineage, &limits);
    sim_close_lineage(&lineage);
    SIM_TRY(result);
    answer->softLimit = limits.soft;
    answer->hardLimit = limits.hard;
    answer->currentUsed = limits.used;
    return NVML_SUCCESS;
}

static nvmlReturn_t set_limits(struct sim_state *state, unsigned int slot,
                               const struct sim_lineage *lineage, const struct limits *wanted)
{
    if (lineage->depth == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    int lock = sim_lock(sim_state_path());
    if (lock < 0)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = write_limits(state, slot, lineage, wanted);
    close(lock);
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device,
                                                      nvmlSetMemoryLimits_v1_t *limits)
{
    SIM_ENTER(device);
    SIM_REQUIRE(limits != NULL && limits->nameSpace != NULL);
    SIM_REQUIRE(limits->softLimit <= limits->hardLimit);
    struct sim_state *state = sim_state();
    if (state->memory_backend == MEMORY_BACKEND_OFF)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!sim_writable()) /* as without CAP_SYS_ADMIN */
        return NVML_ERROR_NO_PERMISSION;
    const struct limits wanted = {limits->softLimit, limits->hardLimit, 0};
    struct sim_lineage lineage;
    SIM_TRY(sim_open_lineage(state, limits->nameSpace, &lineage));
    nvmlReturn_t result = set_limits(state, device->slot, &lineage, &wanted);
    sim_close_lineage(&lineage);
    return result;
}
