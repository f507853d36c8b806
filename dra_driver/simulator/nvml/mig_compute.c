/*
 * Compute instances in NVML: how a GPU instance can be divided, and how it is divided. Copy and
 * media engines belong to the GPU instance and are shared.
 */
#include <stdio.h>
#include <string.h>

#include "mig.h"

enum { CAPABILITY_GRAPHICS = 2 };

/* The profile of the GPU instance that a gate led to. */
static const struct sim_mig_profile *parent_of(const struct sim_target *target,
                                               nvmlGpuInstance_t instance)
{
    return sim_profile_of(target->gpu, instance->gpu_instance);
}

static void describe(const struct sim_mig_profile *parent,
                     const struct sim_compute_profile *profile,
                     nvmlComputeInstanceProfileInfo_t *info)
{
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->instances,
        .multiprocessorCount = profile->multiprocessors,
        .sharedCopyEngineCount = parent->engines[ENGINE_COPY_ENGINES],
        .sharedDecoderCount = parent->engines[ENGINE_DECODERS],
        .sharedEncoderCount = parent->engines[ENGINE_ENCODERS],
        .sharedJpegCount = parent->engines[ENGINE_JPEG_ENGINES],
        .sharedOfaCount = parent->engines[ENGINE_OFA_ENGINES],
    };
}

static nvmlReturn_t find_profile(const struct sim_target *target, nvmlGpuInstance_t instance,
                                 unsigned int index, unsigned int engine_index,
                                 struct sim_compute_profile *profile)
{
    SIM_REQUIRE(index < CI_PROFILE_COUNT && engine_index < CI_ENGINE_PROFILE_COUNT);
    return sim_compute_profile(target->gpu, parent_of(target, instance), index, profile)
               ? NVML_SUCCESS
               : NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    nvmlGpuInstance_t instance, unsigned int index, unsigned int engine_index,
    nvmlComputeInstanceProfileInfo_t *info)
{
    SIM_GUARD;
    struct sim_target target;
    struct sim_compute_profile profile;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    SIM_REQUIRE(info != NULL);
    SIM_TRY(find_profile(&target, instance, index, engine_index, &profile));
    describe(parent_of(&target, instance), &profile, info);
    return NVML_SUCCESS;
}

/* Versions 2 and 3 differ in the last word only. */
NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance,
                                                                       unsigned int index,
                                                                       unsigned int engine_index,
                                                                       void *info)
{
    SIM_GUARD;
    struct sim_target target;
    struct sim_compute_profile profile;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    SIM_REQUIRE(info != NULL);
    SIM_TRY(find_profile(&target, instance, index, engine_index, &profile));
    const struct sim_mig_profile *parent = parent_of(&target, instance);
    nvmlComputeInstanceProfileInfo_v2_t *second = info;
    nvmlComputeInstanceProfileInfo_v3_t *third = info;
    if (second->version == NVML_VERSION_OF(nvmlComputeInstanceProfileInfo_v3_t, 3))
        third->capabilities = (parent->capabilities & CAPABILITY_GRAPHICS) != 0;
    else if (second->version != NVML_VERSION_OF(nvmlComputeInstanceProfileInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    describe(parent, &profile, &second->facts);
    sim_compute_name(parent, profile.slices, second->name, sizeof second->name);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
    nvmlGpuInstance_t instance, unsigned int id, unsigned int *count)
{
    SIM_GUARD;
    struct sim_target target;
    struct sim_compute_profile profile;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    SIM_REQUIRE(count != NULL);
    SIM_TRY(sim_may_configure());
    SIM_REQUIRE(sim_compute_profile(target.gpu, parent_of(&target, instance), id, &profile));
    *count = sim_compute_remaining(target.instance, &profile);
    return NVML_SUCCESS;
}

/* Without an array only the number is asked for; else *count is the array's size on entry. */
NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    nvmlGpuInstance_t instance, unsigned int id, nvmlPlacement_t *placements, unsigned int *count)
{
    SIM_GUARD;
    struct sim_target target;
    struct sim_compute_profile profile;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    SIM_REQUIRE(count != NULL);
    SIM_REQUIRE(sim_compute_profile(target.gpu, parent_of(&target, instance), id, &profile));
    if (placements != NULL && *count < profile.instances)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned int used = 0;
    for (unsigned int start = 0; placements != NULL && start < 32; start++)
        if (profile.starts >> start & 1)
            placements[used++] = (nvmlPlacement_t){start, profile.slices};
    *count = profile.instances;
    return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlGpuInstance_t instance, unsigned int profile_id,
                           const nvmlPlacement_t *placement, nvmlComputeInstance_t *compute)
{
    SIM_REQUIRE(compute != NULL);
    SIM_TRY(sim_may_change());
    const struct sim_machine machine = sim_session();
    unsigned int id;
    SIM_TRY(sim_create_compute_instance(&machine, instance, profile_id, placement, &id));
    *compute = sim_compute_instance_handle(instance->slot, instance->gpu_instance, id);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance,
                                                              unsigned int profile_id,
                                                              nvmlComputeInstance_t *compute)
{
    SIM_GUARD;
    struct sim_target target;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    return create(instance, profile_id, NULL, compute);
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    nvmlGpuInstance_t instance, unsigned int profile_id, const nvmlPlacement_t *placement,
    nvmlComputeInstance_t *compute)
{
    SIM_GUARD;
    struct sim_target target;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    SIM_REQUIRE(placement != NULL);
    return create(instance, profile_id, placement, compute);
}

/* Lists the instances of one profile; the array must have room for as many as there can be. */
NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance,
                                                            unsigned int profile_id,
                                                            nvmlComputeInstance_t *computes,
                                                            unsigned int *count)
{
    SIM_GUARD;
    struct sim_target target;
    struct sim_compute_profile profile;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    SIM_REQUIRE(computes != NULL && count != NULL);
    SIM_TRY(sim_may_configure());
    SIM_REQUIRE(
        sim_compute_profile(target.gpu, parent_of(&target, instance), profile_id, &profile));
    unsigned int used = 0;
    for (unsigned int id = 0; id < SIM_MAX_COMPUTE_INSTANCES; id++) {
        const struct sim_compute_instance *compute = &target.instance->compute[id];
        if (compute->present && compute->profile_id == profile_id)
            computes[used++] =
                sim_compute_instance_handle(instance->slot, instance->gpu_instance, id);
    }
    *count = used;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance,
                                                               unsigned int id,
                                                               nvmlComputeInstance_t *compute)
{
    SIM_GUARD;
    struct sim_target target;
    SIM_TRY(sim_enter_instance(__func__, instance, &target));
    SIM_REQUIRE(compute != NULL);
    SIM_TRY(sim_may_configure());
    if (id >= SIM_MAX_COMPUTE_INSTANCES || !target.instance->compute[id].present)
        return NVML_ERROR_NOT_FOUND;
    *compute = sim_compute_instance_handle(instance->slot, instance->gpu_instance, id);
    return NVML_SUCCESS;
}

/* Version 1 has no placement. */
NVML_EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute,
                                                    nvmlComputeInstanceInfo_v1_t *info)
{
    SIM_GUARD;
    struct sim_target target;
    SIM_TRY(sim_enter_compute(__func__, compute, &target));
    SIM_REQUIRE(info != NULL);
    *info = (nvmlComputeInstanceInfo_v1_t){
        .device = sim_device_in_slot(compute->slot), /* the parent, as nvml.h says */
        .gpuInstance = sim_gpu_instance_handle(compute->slot, compute->gpu_instance),
        .id = compute->compute_instance,
        .profileId = target.compute->profile_id,
    };
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute,
                                                       nvmlComputeInstanceInfo_t *info)
{
    SIM_GUARD;
    struct sim_target target;
    SIM_TRY(sim_enter_compute(__func__, compute, &target));
    SIM_REQUIRE(info != NULL);
    *info = (nvmlComputeInstanceInfo_t){
        .device = sim_device_in_slot(compute->slot), /* the parent, as nvml.h says */
        .gpuInstance = sim_gpu_instance_handle(compute->slot, compute->gpu_instance),
        .id = compute->compute_instance,
        .profileId = target.compute->profile_id,
        .placement = {target.compute->start, target.compute->size},
    };
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
    SIM_GUARD;
    struct sim_target target;
    SIM_TRY(sim_enter_compute(__func__, compute, &target));
    SIM_TRY(sim_may_change());
    const struct sim_machine machine = sim_session();
    return sim_destroy_compute_instance(&machine, compute);
}
