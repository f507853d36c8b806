/*
 * Handles of GPU instances, compute instances and MIG devices, and the gate for them. A handle
 * means a number: if an instance is destroyed and another gets its number, old handles are for the
 * new one, as NVML warns. A handle without an instance is an invalid argument.
 *
 * On the host all instances are visible. In a container a MIG device is visible if the nodes of
 * both its capabilities exist, and instances can be listed and changed with the node of mig/config.
 * The total of all instances is visible with mig/monitor, and always on the host.
 */
#include <string.h>
#include <strings.h>

#include "mig.h"

enum { CONFIG_MINOR = 1, MONITOR_MINOR = 2 };

static struct sim_device mig_devices[SIM_MAX_GPUS][SIM_MAX_GPU_INSTANCES]
                                    [SIM_MAX_COMPUTE_INSTANCES];
static struct sim_instance gpu_instances[SIM_MAX_GPUS][SIM_MAX_GPU_INSTANCES];
static struct sim_instance compute_instances[SIM_MAX_GPUS][SIM_MAX_GPU_INSTANCES]
                                            [SIM_MAX_COMPUTE_INSTANCES];

__attribute__((constructor)) static void number_handles(void)
{
    for (unsigned int slot = 0; slot < SIM_MAX_GPUS; slot++)
        for (unsigned int gi = 0; gi < SIM_MAX_GPU_INSTANCES; gi++) {
            gpu_instances[slot][gi] = (struct sim_instance){slot, gi, 0};
            for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
                mig_devices[slot][gi][ci] = (struct sim_device){slot, true, gi, ci};
                compute_instances[slot][gi][ci] = (struct sim_instance){slot, gi, ci};
            }
        }
}

/* Whether a pointer is the address of an element of an array, and so one of our handles. */
#define IS_ELEMENT(pointer, first, array)                                           \
    ((uintptr_t)(pointer) >= (uintptr_t)(first) &&                                  \
     (uintptr_t)(pointer) < (uintptr_t)(first) + sizeof(array) &&                   \
     ((uintptr_t)(pointer) - (uintptr_t)(first)) % sizeof(*(first)) == 0)

bool sim_is_mig_handle(nvmlDevice_t device)
{
    return IS_ELEMENT(device, &mig_devices[0][0][0], mig_devices);
}

nvmlDevice_t sim_mig_handle(unsigned int slot, unsigned int instance, unsigned int compute)
{
    return &mig_devices[slot][instance][compute];
}

nvmlGpuInstance_t sim_gpu_instance_handle(unsigned int slot, unsigned int id)
{
    return &gpu_instances[slot][id];
}

nvmlComputeInstance_t sim_compute_instance_handle(unsigned int slot, unsigned int instance,
                                                  unsigned int id)
{
    return &compute_instances[slot][instance][id];
}

bool sim_mig_visible(nvmlDevice_t mig)
{
    if (sim_on_host())
        return true;
    unsigned int gpu_minor = (unsigned int)sim_state()->gpus[mig->slot].facts[FACT_MINOR];
    unsigned int minor_number = sim_instance_minor(gpu_minor, mig->gpu_instance);
    return sim_capability_node(minor_number) &&
           sim_capability_node(minor_number + 1 + mig->compute_instance);
}

/* Whether this process may list instances: an administrator, or one with mig/config. */
nvmlReturn_t sim_may_configure(void)
{
    bool may = sim_on_host() ? sim_writable() : sim_capability_node(CONFIG_MINOR);
    return may ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

/* Whether this process may see the load of others' instances: on the host, or by mig/monitor. */
nvmlReturn_t sim_may_monitor(void)
{
    bool may = sim_on_host() || sim_capability_node(MONITOR_MINOR);
    return may ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

/* Whether this process may make and destroy instances. */
nvmlReturn_t sim_may_change(void)
{
    SIM_TRY(sim_may_configure());
    return sim_writable() ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

static nvmlReturn_t enter(const char *function, const struct sim_instance *handle, bool ours,
                          struct sim_target *target)
{
    struct sim_state *state = sim_state();
    if (state == NULL)
        return NVML_ERROR_UNINITIALIZED;
    SIM_TRY(sim_fault(function, ours ? (int)handle->slot : -1));
    SIM_REQUIRE(ours);
    *target = (struct sim_target){.gpu = &state->gpus[handle->slot]};
    SIM_TRY(sim_check_bus(target->gpu));
    target->instance = &target->gpu->instances[handle->gpu_instance];
    SIM_REQUIRE(__atomic_load_n(&target->instance->present, __ATOMIC_ACQUIRE));
    return NVML_SUCCESS;
}

/* The gate of calls on a GPU instance. */
nvmlReturn_t sim_enter_instance(const char *function, nvmlGpuInstance_t instance,
                                struct sim_target *target)
{
    bool ours = IS_ELEMENT(instance, &gpu_instances[0][0], gpu_instances);
    return enter(function, instance, ours, target);
}

/* The gate of calls on a compute instance. */
nvmlReturn_t sim_enter_compute(const char *function, nvmlComputeInstance_t compute,
                               struct sim_target *target)
{
    bool ours = IS_ELEMENT(compute, &compute_instances[0][0][0], compute_instances);
    SIM_TRY(enter(function, compute, ours, target));
    target->compute = &target->instance->compute[compute->compute_instance];
    SIM_REQUIRE(__atomic_load_n(&target->compute->present, __ATOMIC_ACQUIRE));
    return NVML_SUCCESS;
}

/* Finds a MIG device that this process sees. */
nvmlReturn_t sim_mig_by_uuid(const char *uuid, nvmlDevice_t *device)
{
    for (unsigned int index = 0; index < sim_visible_count(); index++) {
        unsigned int slot = sim_visible(index)->slot;
        const struct sim_gpu *gpu = &sim_state()->gpus[slot];
        for (unsigned int gi = 0; gi < SIM_MAX_GPU_INSTANCES; gi++)
            for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
                const struct sim_compute_instance *compute = &gpu->instances[gi].compute[ci];
                *device = sim_mig_handle(slot, gi, ci);
                if (gpu->instances[gi].present && compute->present &&
                    strncasecmp(compute->uuid, uuid, SIM_UUID_SIZE) == 0 &&
                    sim_mig_visible(*device))
                    return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}
