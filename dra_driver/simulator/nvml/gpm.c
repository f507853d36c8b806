/*
 * GPM: counters of a GPU, or of one GPU instance, read twice, and the difference. From Hopper on;
 * earlier cards answer NOT_SUPPORTED.
 *
 * The figures are those of the simulated processes, as the mean of both ends: nothing is counted in
 * between. Like the real one, it needs more than 100 ms between the samples; the answer for less is
 * not documented, and here no metric has a value then. What simulated processes do not have, such
 * as an occupancy, has none either. A GPU in MIG mode is only sampled by its instances: in a
 * container by its own, or by all with mig/monitor.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "facts.h"
#include "mig.h"

enum { ARCHITECTURE_HOPPER = 9, WHOLE_GPU = SIM_MAX_GPU_INSTANCES };
enum { METRIC_GRAPHICS = 1, METRIC_SM = 2, METRIC_DRAM = 10 };

#define LEAST_NS UINT64_C(100000000)

struct nvmlGpmSample_st {
    uint64_t taken_ns; /* 0: nothing is in it */
    unsigned int slot, instance;
    unsigned int sm, memory_access;
};

static bool has_gpm(const struct sim_gpu *gpu)
{
    return gpu->facts[FACT_ARCHITECTURE] >= ARCHITECTURE_HOPPER;
}

static unsigned int at_most_all(uint64_t percent)
{
    return percent > 100 ? 100 : (unsigned int)percent;
}

/* Adds up the load of running processes on a GPU, or on one of its instances. */
static void take(nvmlGpmSample_t sample, const struct sim_gpu *gpu, unsigned int slot,
                 unsigned int instance)
{
    uint64_t sm = 0, memory_access = 0;
    struct timespec now;
    if (instance == WHOLE_GPU && gpu->facts[FACT_UTILIZATION_GPU] != SIM_ABSENT) {
        sm = (uint64_t)gpu->facts[FACT_UTILIZATION_GPU];
        memory_access = (uint64_t)gpu->facts[FACT_UTILIZATION_MEMORY];
    }
    for (unsigned int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &sim_state()->processes[i];
        if (!process->active || process->slot != slot || process->sampled_us != 0 ||
            (instance != WHOLE_GPU && process->gpu_instance != instance))
            continue;
        sm += at_most_all(process->sm);
        memory_access += at_most_all(process->memory_access);
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    *sample = (struct nvmlGpmSample_st){
        (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec, slot, instance,
        at_most_all(sm), at_most_all(memory_access)};
}

NVML_EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    SIM_ENTER(device);
    SIM_REQUIRE(support != NULL);
    if (support->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = has_gpm(gpu);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    SIM_GUARD;
    SIM_TRY(sim_enter(__func__));
    SIM_REQUIRE(sample != NULL);
    *sample = calloc(1, sizeof **sample);
    return *sample != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    SIM_GUARD;
    SIM_TRY(sim_enter(__func__));
    SIM_REQUIRE(sample != NULL);
    free(sample);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    SIM_ENTER(device);
    SIM_REQUIRE(sample != NULL);
    if (!has_gpm(gpu) || gpu->facts[FACT_MIG_CURRENT] == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    take(sample, gpu, device->slot, WHOLE_GPU);
    return NVML_SUCCESS;
}

/* The device is the GPU, never a MIG device of it. */
NVML_EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance,
                                             nvmlGpmSample_t sample)
{
    SIM_ENTER(device);
    SIM_REQUIRE(sample != NULL);
    if (!has_gpm(gpu) || gpu->facts[FACT_MIG_CURRENT] != 1)
        return NVML_ERROR_NOT_SUPPORTED;
    if (instance >= SIM_MAX_GPU_INSTANCES ||
        !__atomic_load_n(&gpu->instances[instance].present, __ATOMIC_ACQUIRE))
        return NVML_ERROR_NOT_FOUND;
    if (!sim_capability_node(sim_instance_minor((unsigned int)gpu->facts[FACT_MINOR], instance)))
        SIM_TRY(sim_may_monitor());
    take(sample, gpu, device->slot, instance);
    return NVML_SUCCESS;
}

/* One metric from two samples of the same. */
static void tell(nvmlGpmMetric_t *metric, nvmlGpmSample_t one, nvmlGpmSample_t other)
{
    metric->nvmlReturn = NVML_SUCCESS;
    if (metric->metricId == METRIC_GRAPHICS || metric->metricId == METRIC_SM)
        metric->value = (one->sm + other->sm) / 2.0;
    else if (metric->metricId == METRIC_DRAM)
        metric->value = (one->memory_access + other->memory_access) / 2.0;
    else if (metric->metricId == 0 || metric->metricId >= NVML_GPM_METRIC_MAX)
        metric->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;
    else
        metric->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    if (metric->nvmlReturn == NVML_SUCCESS && other->taken_ns - one->taken_ns <= LEAST_NS)
        metric->nvmlReturn = NVML_ERROR_NO_DATA;
}

NVML_EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked)
{
    SIM_GUARD;
    SIM_TRY(sim_enter(__func__));
    SIM_REQUIRE(asked != NULL);
    if (asked->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlGpmSample_t one = asked->sample1, other = asked->sample2;
    SIM_REQUIRE(asked->numMetrics > 0 && asked->numMetrics <= NVML_GPM_METRIC_MAX);
    SIM_REQUIRE(one != NULL && other != NULL && one->taken_ns != 0);
    SIM_REQUIRE(other->taken_ns >= one->taken_ns && one->slot == other->slot &&
                one->instance == other->instance);
    for (unsigned int i = 0; i < asked->numMetrics; i++)
        tell(&asked->metrics[i], one, other);
    return NVML_SUCCESS;
}
