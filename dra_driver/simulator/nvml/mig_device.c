/*
 * MIG devices: the handles of compute instances for programs. They have a UUID, a name, an index
 * below their GPU, memory and engines; other questions about GPUs are NOT_SUPPORTED for them.
 */
#include <stdio.h>
#include <string.h>

#include "facts.h"
#include "mig.h"

#define MIB (UINT64_C(1) << 20)

/* Zero unless the card can do MIG and its mode is on. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    SIM_ENTER(device);
    SIM_REQUIRE(count != NULL);
    *count = gpu->facts[FACT_MIG_CURRENT] == 1 ? (unsigned int)gpu->facts[FACT_MIG_MAX_DEVICES] : 0;
    return NVML_SUCCESS;
}

/* How many MIG devices that this process sees precede one; a container sees no holes. */
static unsigned int rank(const struct sim_gpu *gpu, unsigned int slot, unsigned int mig_index)
{
    unsigned int before = 0;
    for (unsigned int gi = 0; gi < SIM_MAX_GPU_INSTANCES; gi++)
        for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
            const struct sim_compute_instance *compute = &gpu->instances[gi].compute[ci];
            before += gpu->instances[gi].present && compute->present &&
                      compute->mig_index < mig_index &&
                      sim_mig_visible(sim_mig_handle(slot, gi, ci));
        }
    return before;
}

static unsigned int index_of(const struct sim_target *target, nvmlDevice_t device)
{
    unsigned int own = target->compute->mig_index;
    return sim_on_host() ? own : rank(target->gpu, device->slot, own);
}

/* Indices have holes where an instance was destroyed: NOT_FOUND, and the next may be there. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device,
                                                             unsigned int index,
                                                             nvmlDevice_t *mig_device)
{
    SIM_ENTER(device);
    SIM_REQUIRE(mig_device != NULL);
    int64_t most = gpu->facts[FACT_MIG_MAX_DEVICES];
    if (gpu->facts[FACT_MIG_CURRENT] == SIM_ABSENT || most == SIM_ABSENT)
        return NVML_ERROR_NOT_SUPPORTED;
    SIM_REQUIRE(index < most);
    for (unsigned int gi = 0; gi < SIM_MAX_GPU_INSTANCES; gi++)
        for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
            struct sim_target target = {gpu, &gpu->instances[gi], &gpu->instances[gi].compute[ci]};
            nvmlDevice_t found = sim_mig_handle(device->slot, gi, ci);
            if (target.instance->present && target.compute->present && sim_mig_visible(found) &&
                index_of(&target, found) == index) {
                *mig_device = found;
                return NVML_SUCCESS;
            }
        }
    return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(__func__, device, &target));
    SIM_REQUIRE(is_mig != NULL);
    *is_mig = target.compute != NULL;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig_device,
                                                                      nvmlDevice_t *device)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(__func__, mig_device, &target));
    SIM_REQUIRE(device != NULL && target.compute != NULL);
    *device = sim_device_in_slot(mig_device->slot);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig_device, unsigned int *id)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(__func__, mig_device, &target));
    SIM_REQUIRE(id != NULL && target.compute != NULL);
    *id = mig_device->gpu_instance;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig_device, unsigned int *id)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(__func__, mig_device, &target));
    SIM_REQUIRE(id != NULL && target.compute != NULL);
    *id = mig_device->compute_instance;
    return NVML_SUCCESS;
}

/* What a MIG device has; a whole GPU does not answer this. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device,
                                                    nvmlDeviceAttributes_t *attributes)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(__func__, device, &target));
    SIM_REQUIRE(attributes != NULL);
    if (target.compute == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct sim_mig_profile *profile = sim_profile_of(target.gpu, device->gpu_instance);
    struct sim_compute_profile compute = {0};
    sim_compute_profile(target.gpu, profile, target.compute->profile_id, &compute);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = compute.multiprocessors,
        .sharedCopyEngineCount = profile->engines[ENGINE_COPY_ENGINES],
        .sharedDecoderCount = profile->engines[ENGINE_DECODERS],
        .sharedEncoderCount = profile->engines[ENGINE_ENCODERS],
        .sharedJpegCount = profile->engines[ENGINE_JPEG_ENGINES],
        .sharedOfaCount = profile->engines[ENGINE_OFA_ENGINES],
        .gpuInstanceSliceCount = profile->slices,
        .computeInstanceSliceCount = target.compute->size,
        .memorySizeMB = profile->memory_mib,
    };
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(__func__, device, &target));
    const char *text = target.compute ? target.compute->uuid : target.gpu->texts[TEXT_UUID];
    return sim_copy_text(text, uuid, length);
}

/* A MIG device is named after its GPU and its profile. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(__func__, device, &target));
    if (target.compute == NULL)
        return sim_copy_text(target.gpu->texts[TEXT_NAME], name, length);
    char profile[64], text[SIM_TEXT_SIZE + 64];
    sim_compute_name(sim_profile_of(target.gpu, device->gpu_instance), target.compute->size,
                     profile, sizeof profile);
    snprintf(text, sizeof text, "%s %s", target.gpu->texts[TEXT_NAME], profile);
    return sim_copy_text(text, name, length);
}

/* The index of a GPU among the visible ones, or that of a MIG device below its GPU. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(__func__, device, &target));
    SIM_REQUIRE(index != NULL);
    if (target.compute != NULL)
        *index = index_of(&target, device);
    else
        *index = (unsigned int)sim_index_of(sim_device_in_slot(device->slot));
    return NVML_SUCCESS;
}

/* The memory of a GPU, or of a MIG device's GPU instance. Only processes that may monitor all
 * instances see their total. */
static nvmlReturn_t read_memory(const char *function, nvmlDevice_t device,
                                nvmlMemory_v2_t *memory)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(function, device, &target));
    SIM_REQUIRE(memory != NULL);
    const struct sim_gpu *gpu = target.gpu;
    if (target.compute == NULL) {
        if (gpu->facts[FACT_MIG_CURRENT] == 1)
            SIM_TRY(sim_may_monitor());
        SIM_FACT(memory->total, FACT_MEMORY_TOTAL);
        SIM_FACT(memory->reserved, FACT_MEMORY_RESERVED);
        SIM_FACT(memory->used, FACT_MEMORY_USED);
    } else {
        memory->total = sim_profile_of(gpu, device->gpu_instance)->memory_mib * MIB;
        memory->reserved = 0;
        memory->used = 0;
        for (unsigned int i = 0; i < SIM_MAX_PROCESSES; i++) {
            const struct sim_process *process = &sim_state()->processes[i];
            if (process->active && process->slot == device->slot &&
                process->gpu_instance == device->gpu_instance)
                memory->used += process->memory;
        }
    }
    memory->free = memory->total - memory->used - memory->reserved;
    return NVML_SUCCESS;
}

/* Memory v1 has no field for what the driver reserves, and counts it as used. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlMemory_v2_t all;
    SIM_TRY(read_memory(__func__, device, memory != NULL ? &all : NULL));
    memory->total = all.total;
    memory->used = all.used + all.reserved;
    memory->free = all.free;
    return NVML_SUCCESS;
}

/* Asked from inside a control group with a limit, the GPU has no more than that. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (memory != NULL && memory->version != NVML_VERSION_OF(nvmlMemory_v2_t, 2) &&
        sim_state() != NULL)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SIM_TRY(read_memory(__func__, device, memory));
    if (!device->mig)
        sim_cut_to_limit(device->slot, memory);
    return NVML_SUCCESS;
}
