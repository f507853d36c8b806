/*
 * Sensors and limits: temperature, power, clocks, PCIe, utilisation. The machine is idle, so the
 * values are those of the profile and do not move by themselves; they can be set in the state.
 */
#include <string.h>

#include "facts.h"

enum { ARCHITECTURE_TURING = 6 };

SIM_NUMBER(nvmlDeviceGetDisplayMode, FACT_DISPLAY_MODE)
SIM_NUMBER(nvmlDeviceGetDisplayActive, FACT_DISPLAY_ACTIVE)
SIM_NUMBER(nvmlDeviceGetFanSpeed, FACT_FAN_SPEED)
SIM_NUMBER(nvmlDeviceGetPerformanceState, FACT_PERFORMANCE_STATE)
SIM_NUMBER(nvmlDeviceGetPowerState, FACT_PERFORMANCE_STATE)
SIM_NUMBER(nvmlDeviceGetPowerUsage, FACT_POWER_USAGE)
SIM_NUMBER(nvmlDeviceGetEnforcedPowerLimit, FACT_POWER_LIMIT)
SIM_NUMBER(nvmlDeviceGetPowerManagementLimit, FACT_POWER_LIMIT)
SIM_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, FACT_POWER_DEFAULT)
SIM_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, FACT_PCIE_GENERATION)
SIM_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, FACT_PCIE_GENERATION_MAX)
SIM_NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, FACT_PCIE_GENERATION_MAX)
SIM_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, FACT_PCIE_WIDTH)
SIM_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, FACT_PCIE_WIDTH_MAX)

/* Writes a constant through the gate: counters that stand still on an idle machine. */
static nvmlReturn_t constant(const char *function, nvmlDevice_t device, unsigned int value,
                             unsigned int *out)
{
    struct sim_gpu *gpu = NULL;
    SIM_TRY(sim_enter_device(function, device, &gpu));
    SIM_REQUIRE(out != NULL);
    *out = value;
    return NVML_SUCCESS;
}

/* On if the card has power limits at all. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned int *mode)
{
    SIM_TRY(sim_read_fact(__func__, device, FACT_POWER_DEFAULT, mode));
    *mode = 1;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *count)
{
    return constant(__func__, device, 0, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter,
                                                     unsigned int *kilobytes_per_second)
{
    SIM_TRY(constant(__func__, device, 0, kilobytes_per_second));
    SIM_REQUIRE(counter <= 1);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned int *mode)
{
    return constant(__func__, device, 0, mode);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size)
{
    return constant(__func__, device, 4000, size);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device,
                                                                      unsigned int *least,
                                                                      unsigned int *most)
{
    SIM_ENTER(device);
    SIM_REQUIRE(least != NULL && most != NULL);
    SIM_FACT(*least, FACT_POWER_MIN);
    SIM_FACT(*most, FACT_POWER_MAX);
    return NVML_SUCCESS;
}

/* In milliwatts. Kept until the next reset. */
NVML_EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit)
{
    SIM_ENTER(device);
    unsigned int least = 0;
    unsigned int most = 0;
    SIM_FACT(least, FACT_POWER_MIN);
    SIM_FACT(most, FACT_POWER_MAX);
    SIM_REQUIRE(limit >= least && limit <= most);
    return sim_write_fact(gpu, FACT_POWER_LIMIT, limit);
}

/* Sensor 0 is the GPU's; NVML has no other. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor,
                                                  unsigned int *degrees)
{
    SIM_ENTER(device);
    SIM_REQUIRE(degrees != NULL && sensor == 0);
    SIM_FACT(*degrees, FACT_TEMPERATURE);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int which,
                                                           unsigned int *degrees)
{
    static const enum sim_fact thresholds[] = {FACT_TEMPERATURE_SHUTDOWN, FACT_TEMPERATURE_SLOWDOWN,
                                               FACT_TEMPERATURE_MEMORY_MAX, FACT_TEMPERATURE_MAX};
    SIM_ENTER(device);
    SIM_REQUIRE(degrees != NULL);
    if (which >= sizeof thresholds / sizeof thresholds[0])
        return NVML_ERROR_NOT_SUPPORTED; /* acoustic thresholds, of cards with fans */
    SIM_FACT(*degrees, thresholds[which]);
    return NVML_SUCCESS;
}

/* Clock domains count graphics, SM, memory, video; the facts lie in that order. */
static nvmlReturn_t clock_of(const char *function, nvmlDevice_t device, enum sim_fact first,
                             unsigned int domain, unsigned int *megahertz)
{
    struct sim_gpu *gpu = NULL;
    SIM_TRY(sim_enter_device(function, device, &gpu));
    SIM_REQUIRE(megahertz != NULL && domain <= 3);
    SIM_FACT(*megahertz, first + domain);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int domain,
                                                unsigned int *megahertz)
{
    return clock_of(__func__, device, FACT_CLOCK_GRAPHICS, domain, megahertz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int domain,
                                                   unsigned int *megahertz)
{
    return clock_of(__func__, device, FACT_MAX_CLOCK_GRAPHICS, domain, megahertz);
}

/* Of the four domains, applications have a clock in graphics, SM and memory. */
static nvmlReturn_t application_clock(const char *function, nvmlDevice_t device,
                                      unsigned int domain, unsigned int *megahertz)
{
    static const enum sim_fact clocks[] = {FACT_APPLICATION_GRAPHICS, FACT_APPLICATION_GRAPHICS,
                                           FACT_APPLICATION_MEMORY};
    struct sim_gpu *gpu = NULL;
    SIM_TRY(sim_enter_device(function, device, &gpu));
    SIM_REQUIRE(megahertz != NULL && domain <= 3);
    if (domain == 3)
        return NVML_ERROR_NOT_SUPPORTED;
    SIM_FACT(*megahertz, clocks[domain]);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int domain,
                                                        unsigned int *megahertz)
{
    return application_clock(__func__, device, domain, megahertz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device,
                                                               unsigned int domain,
                                                               unsigned int *megahertz)
{
    return application_clock(__func__, device, domain, megahertz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device,
                                                            unsigned int domain,
                                                            unsigned int *megahertz)
{
    unsigned int settable;
    SIM_TRY(sim_read_fact(__func__, device, FACT_APPLICATION_GRAPHICS, &settable));
    return clock_of(__func__, device, FACT_MAX_CLOCK_GRAPHICS, domain, megahertz);
}

/* Kinds 0 current, 1 and 2 application clock, 3 the most a customer can set. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int domain,
                                            unsigned int kind, unsigned int *megahertz)
{
    if (kind == 1 || kind == 2)
        return application_clock(__func__, device, domain, megahertz);
    enum sim_fact first = kind == 0 ? FACT_CLOCK_GRAPHICS : FACT_MAX_CLOCK_GRAPHICS;
    SIM_TRY(clock_of(__func__, device, first, domain, megahertz));
    SIM_REQUIRE(kind <= 3);
    return NVML_SUCCESS;
}

/* Why clocks are as they are: 0x1, the GPU is idle, and what slows it down. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                                   unsigned long long *reasons)
{
    SIM_ENTER(device);
    SIM_REQUIRE(reasons != NULL);
    SIM_FACT(*reasons, FACT_SLOWDOWN);
    if (*reasons == 0)
        *reasons = 0x1;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device,
                                                                     unsigned long long *reasons)
{
    SIM_ENTER(device);
    SIM_REQUIRE(reasons != NULL);
    *reasons = 0x1ff;
    return NVML_SUCCESS;
}

static unsigned int busier(unsigned int percent, uint32_t more)
{
    return more > 100 || percent + more > 100 ? 100 : percent + more;
}

/* In MIG mode the whole GPU has no load. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
                                                       nvmlUtilization_t *utilization)
{
    SIM_ENTER(device);
    SIM_REQUIRE(utilization != NULL);
    if (gpu->facts[FACT_MIG_CURRENT] == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    SIM_FACT(utilization->gpu, FACT_UTILIZATION_GPU);
    SIM_FACT(utilization->memory, FACT_UTILIZATION_MEMORY);
    for (unsigned int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &sim_state()->processes[i];
        if (!process->active || process->slot != device->slot || process->sampled_us != 0)
            continue;
        utilization->gpu = busier(utilization->gpu, process->sm);
        utilization->memory = busier(utilization->memory, process->memory_access);
    }
    return NVML_SUCCESS;
}

/* The media engines: percent busy, and the sampling period in microseconds. */
#define IDLE_ENGINE(symbol)                                                               \
    NVML_EXPORT nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *percent,           \
                                    unsigned int *period)                                 \
    {                                                                                     \
        SIM_TRY(constant(__func__, device, 0, percent));                                  \
        SIM_REQUIRE(period != NULL);                                                      \
        *period = 100000;                                                                 \
        return NVML_SUCCESS;                                                              \
    }

IDLE_ENGINE(nvmlDeviceGetEncoderUtilization)
IDLE_ENGINE(nvmlDeviceGetDecoderUtilization)

/* Engines that came with Turing. */
#define TURING_ENGINE(symbol)                                                             \
    NVML_EXPORT nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *percent,           \
                                    unsigned int *period)                                 \
    {                                                                                     \
        unsigned int architecture;                                                        \
        SIM_TRY(sim_read_fact(__func__, device, FACT_ARCHITECTURE, &architecture));       \
        SIM_REQUIRE(percent != NULL && period != NULL);                                   \
        if (architecture < ARCHITECTURE_TURING)                                           \
            return NVML_ERROR_NOT_SUPPORTED;                                              \
        *percent = 0;                                                                     \
        *period = 100000;                                                                 \
        return NVML_SUCCESS;                                                              \
    }

TURING_ENGINE(nvmlDeviceGetJpgUtilization)
TURING_ENGINE(nvmlDeviceGetOfaUtilization)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions,
                                                   unsigned int *average_fps,
                                                   unsigned int *average_latency)
{
    SIM_ENTER(device);
    SIM_REQUIRE(sessions != NULL && average_fps != NULL && average_latency != NULL);
    *sessions = *average_fps = *average_latency = 0;
    return NVML_SUCCESS;
}

/* Three words: sessions, average frames per second, average latency. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, unsigned int statistics[3])
{
    SIM_ENTER(device);
    SIM_REQUIRE(statistics != NULL);
    memset(statistics, 0, 3 * sizeof statistics[0]);
    return NVML_SUCCESS;
}
