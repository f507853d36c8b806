/*
 * MIG mode and GPU instances in NVML. A card without MIG answers NOT_SUPPORTED, and so does one
 * whose mode is off, except about its profiles and placements.
 */
#include <stdio.h>
#include <string.h>

#include "facts.h"
#include "mig.h"

enum { MIG_ON = 1, CAPABILITY_P2P = 1 };

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                              unsigned int *pending)
{
    SIM_ENTER(device);
    SIM_REQUIRE(current != NULL && pending != NULL);
    SIM_FACT(*current, FACT_MIG_CURRENT);
    SIM_FACT(*pending, FACT_MIG_PENDING);
    return NVML_SUCCESS;
}

/* Succeeds when the mode was noted; *status says why it is not in force yet. */
NVML_EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode,
                                              nvmlReturn_t *status)
{
    SIM_ENTER(device);
    SIM_REQUIRE(status != NULL && mode <= MIG_ON);
    if (gpu->facts[FACT_MIG_CURRENT] == SIM_ABSENT)
        return NVML_ERROR_NOT_SUPPORTED;
    SIM_TRY(sim_may_change());
    const struct sim_machine machine = sim_session();
    return sim_set_mig_mode(&machine, device->slot, mode, status);
}

static bool has_mig(const struct sim_gpu *gpu)
{
    return gpu->facts[FACT_MIG_CURRENT] != SIM_ABSENT;
}

static nvmlReturn_t mode_is_on(const struct sim_gpu *gpu)
{
    return gpu->facts[FACT_MIG_CURRENT] == MIG_ON ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static void describe(const struct sim_mig_profile *profile, nvmlGpuInstanceProfileInfo_t *info)
{
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = profile->id,
        .isP2pSupported = profile->capabilities & CAPABILITY_P2P,
        .sliceCount = profile->slices,
        .instanceCount = profile->instances,
        .multiprocessorCount = profile->engines[ENGINE_MULTIPROCESSORS],
        .copyEngineCount = profile->engines[ENGINE_COPY_ENGINES],
        .decoderCount = profile->engines[ENGINE_DECODERS],
        .encoderCount = profile->engines[ENGINE_ENCODERS],
        .jpegCount = profile->engines[ENGINE_JPEG_ENGINES],
        .ofaCount = profile->engines[ENGINE_OFA_ENGINES],
        .memorySizeMB = profile->memory_mib,
    };
}

static void describe_v2(const struct sim_mig_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    nvmlGpuInstanceProfileInfo_t info;
    describe(profile, &info);
    *out = (nvmlGpuInstanceProfileInfo_v2_t){
        .version = out->version, .id = info.id, .isP2pSupported = info.isP2pSupported,
        .sliceCount = info.sliceCount, .instanceCount = info.instanceCount,
        .multiprocessorCount = info.multiprocessorCount, .copyEngineCount = info.copyEngineCount,
        .decoderCount = info.decoderCount, .encoderCount = info.encoderCount,
        .jpegCount = info.jpegCount, .ofaCount = info.ofaCount, .memorySizeMB = info.memorySizeMB,
    };
    snprintf(out->name, sizeof out->name, "MIG %s", profile->name);
}

static void describe_v3(const struct sim_mig_profile *profile, nvmlGpuInstanceProfileInfo_v3_t *out)
{
    nvmlGpuInstanceProfileInfo_t info;
    describe(profile, &info);
    *out = (nvmlGpuInstanceProfileInfo_v3_t){
        .version = out->version, .id = info.id, .sliceCount = info.sliceCount,
        .instanceCount = info.instanceCount, .multiprocessorCount = info.multiprocessorCount,
        .copyEngineCount = info.copyEngineCount, .decoderCount = info.decoderCount,
        .encoderCount = info.encoderCount, .jpegCount = info.jpegCount, .ofaCount = info.ofaCount,
        .memorySizeMB = info.memorySizeMB, .capabilities = profile->capabilities,
    };
    snprintf(out->name, sizeof out->name, "MIG %s", profile->name);
}

/* The first word of a versioned structure says which one the caller has. */
static nvmlReturn_t describe_versioned(const struct sim_mig_profile *profile, void *info)
{
    unsigned int version;
    memcpy(&version, info, sizeof version);
    if (version == NVML_VERSION_OF(nvmlGpuInstanceProfileInfo_v2_t, 2))
        describe_v2(profile, info);
    else if (version == NVML_VERSION_OF(nvmlGpuInstanceProfileInfo_v3_t, 3))
        describe_v3(profile, info);
    else
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device,
                                                             unsigned int index,
                                                             nvmlGpuInstanceProfileInfo_t *info)
{
    SIM_ENTER(device);
    SIM_REQUIRE(info != NULL && index < GI_PROFILE_COUNT);
    const struct sim_mig_profile *profile = sim_profile_by_index(gpu, index);
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    describe(profile, info);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device,
                                                              unsigned int index, void *info)
{
    SIM_ENTER(device);
    SIM_REQUIRE(info != NULL && index < GI_PROFILE_COUNT);
    const struct sim_mig_profile *profile = sim_profile_by_index(gpu, index);
    return profile == NULL ? NVML_ERROR_NOT_SUPPORTED : describe_versioned(profile, info);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device,
                                                                  unsigned int id, void *info)
{
    SIM_ENTER(device);
    SIM_REQUIRE(info != NULL);
    if (!has_mig(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    const struct sim_mig_profile *profile = sim_profile_by_id(gpu, id);
    return profile == NULL ? NVML_ERROR_INVALID_ARGUMENT : describe_versioned(profile, info);
}

/* Without an array only the number is asked for; else *count is the array's size on entry. */
static nvmlReturn_t possible_placements(const char *function, nvmlDevice_t device, unsigned int id,
                                        nvmlPlacement_t *placements, unsigned int *count)
{
    struct sim_gpu *gpu = NULL;
    SIM_TRY(sim_enter_device(function, device, &gpu));
    SIM_REQUIRE(count != NULL);
    if (!has_mig(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    const struct sim_mig_profile *profile = sim_profile_by_id(gpu, id);
    SIM_REQUIRE(profile != NULL);
    unsigned int total = (unsigned int)__builtin_popcount(profile->starts), used = 0;
    if (placements != NULL && *count < total)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int start = 0; placements != NULL && start < 32; start++)
        if (profile->starts >> start & 1)
            placements[used++] = (nvmlPlacement_t){start, profile->size};
    *count = total;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device,
                                                                       unsigned int id,
                                                                       nvmlPlacement_t *placements,
                                                                       unsigned int *count)
{
    return possible_placements(__func__, device, id, placements, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device,
                                                                    unsigned int id,
                                                                    nvmlPlacement_t *placements,
                                                                    unsigned int *count)
{
    return possible_placements(__func__, device, id, placements, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device,
                                                                   unsigned int id,
                                                                   unsigned int *count)
{
    SIM_ENTER(device);
    SIM_REQUIRE(count != NULL);
    SIM_TRY(mode_is_on(gpu));
    const struct sim_mig_profile *profile = sim_profile_by_id(gpu, id);
    SIM_REQUIRE(profile != NULL);
    *count = sim_remaining(gpu, profile);
    return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlDevice_t device, const struct sim_gpu *gpu, unsigned int profile_id,
                           const nvmlPlacement_t *placement, nvmlGpuInstance_t *instance)
{
    SIM_REQUIRE(instance != NULL);
    SIM_TRY(mode_is_on(gpu));
    SIM_TRY(sim_may_change());
    const struct sim_machine machine = sim_session();
    unsigned int id;
    SIM_TRY(sim_create_gpu_instance(&machine, device->slot, profile_id, placement, &id));
    *instance = sim_gpu_instance_handle(device->slot, id);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile_id,
                                                     nvmlGpuInstance_t *instance)
{
    SIM_ENTER(device);
    return create(device, gpu, profile_id, NULL, instance);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device,
                                                                  unsigned int profile_id,
                                                                  const nvmlPlacement_t *placement,
                                                                  nvmlGpuInstance_t *instance)
{
    SIM_ENTER(device);
    SIM_REQUIRE(placement != NULL);
    return create(device, gpu, profile_id, placement, instance);
}

/* Lists the instances of one profile; the array must have room for as many as there can be. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id,
                                                   nvmlGpuInstance_t *instances,
                                                   unsigned int *count)
{
    SIM_ENTER(device);
    SIM_REQUIRE(instances != NULL && count != NULL);
    SIM_TRY(mode_is_on(gpu));
    SIM_TRY(sim_may_configure());
    const struct sim_mig_profile *profile = sim_profile_by_id(gpu, profile_id);
    SIM_REQUIRE(profile != NULL);
    unsigned int used = 0;
    for (unsigned int id = 0; id < SIM_MAX_GPU_INSTANCES; id++)
        if (gpu->instances[id].present && sim_profile_of(gpu, id) == profile)
            instances[used++] = sim_gpu_instance_handle(device->slot, id);
    *count = used;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstance_t *instance)
{
    SIM_ENTER(device);
    SIM_REQUIRE(instance != NULL);
    SIM_TRY(mode_is_on(gpu));
    SIM_TRY(sim_may_configure());
    if (id >= SIM_MAX_GPU_INSTANCES || !gpu->instances[id].present)
        return NVML_ERROR_NOT_FOUND;
    *instance = sim_gpu_instance_handle(device->slot, id);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance,
                                                nvmlGpuInstanceInfo_t *info)
{
    SIM_GUARD;
    struct sim_target target;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    SIM_REQUIRE(info != NULL);
    *info = (nvmlGpuInstanceInfo_t){
        .device = sim_device_in_slot(instance->slot),
        .id = instance->gpu_instance,
        .profileId = sim_profile_of(target.gpu, instance->gpu_instance)->id,
        .placement = {target.instance->start, target.instance->size},
    };
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    SIM_GUARD;
    struct sim_target target;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    SIM_TRY(sim_may_change());
    const struct sim_machine machine = sim_session();
    return sim_destroy_gpu_instance(&machine, instance);
}
