/*
 * From an index, UUID, serial number or PCI address to a handle, and back. Indices count the
 * visible GPUs in PCI order; they are not minor numbers. A GPU that is lost is still counted, and
 * asking for its handle answers GPU_IS_LOST.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "simulator.h"

static nvmlReturn_t count_devices(unsigned int *count)
{
    SIM_REQUIRE(count != NULL);
    *count = sim_visible_count();
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    SIM_TRY(sim_enter(__func__));
    return count_devices(count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    SIM_TRY(sim_enter(__func__));
    return count_devices(count);
}

/* Returns a handle that was found; faults injected for the lookup of this GPU apply first. */
static nvmlReturn_t hand_out(const char *function, nvmlDevice_t found, nvmlDevice_t *device)
{
    struct sim_gpu *gpu;
    SIM_TRY(sim_enter_device(function, found, &gpu));
    *device = found;
    return NVML_SUCCESS;
}

static nvmlReturn_t by_index(const char *function, unsigned int index, nvmlDevice_t *device)
{
    if (sim_state() == NULL)
        return NVML_ERROR_UNINITIALIZED;
    if (device == NULL || index >= sim_visible_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    return hand_out(function, sim_visible(index), device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return by_index(__func__, index, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return by_index(__func__, index, device);
}

static nvmlReturn_t by_text(const char *function, enum sim_text which, const char *wanted,
                            nvmlDevice_t *device)
{
    struct sim_state *state = sim_state();
    if (state == NULL)
        return NVML_ERROR_UNINITIALIZED;
    SIM_REQUIRE(wanted != NULL && device != NULL);
    for (unsigned int index = 0; index < sim_visible_count(); index++) {
        nvmlDevice_t candidate = sim_visible(index);
        const char *text = state->gpus[candidate->slot].texts[which];
        if (text[0] != '\0' && strcasecmp(text, wanted) == 0)
            return hand_out(function, candidate, device);
    }
    SIM_TRY(sim_fault(function, -1));
    return NVML_ERROR_NOT_FOUND;
}

/* Hands out a MIG device; faults injected for the lookup on its GPU apply first. */
static nvmlReturn_t by_mig_uuid(const char *function, const char *uuid, nvmlDevice_t *device)
{
    nvmlDevice_t found;
    nvmlReturn_t result = sim_mig_by_uuid(uuid, &found);
    SIM_TRY(sim_fault(function, result == NVML_SUCCESS ? (int)found->slot : -1));
    SIM_TRY(result);
    SIM_TRY(sim_check_bus(&sim_state()->gpus[found->slot]));
    *device = found;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (sim_state() != NULL && uuid != NULL && device != NULL && strncmp(uuid, "MIG-", 4) == 0)
        return by_mig_uuid(__func__, uuid, device);
    return by_text(__func__, TEXT_UUID, uuid, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return by_text(__func__, TEXT_SERIAL, serial, device);
}

/* Reads domain:bus:device.function or bus:device.function; the domain may have 4 or 8 digits. */
static bool parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus,
                         unsigned int *device)
{
    unsigned int function;
    int used = 0;
    if (sscanf(text, "%8x:%2x:%2x.%1x%n", domain, bus, device, &function, &used) == 4 &&
        text[used] == '\0')
        return true;
    *domain = 0;
    return sscanf(text, "%2x:%2x.%1x%n", bus, device, &function, &used) == 3 &&
           text[used] == '\0';
}

/* Finds the visible GPU at an address: INVALID_ARGUMENT if that is none, NOT_FOUND if empty. */
static nvmlReturn_t find_by_bus_id(const char *text, nvmlDevice_t *device)
{
    unsigned int domain, bus, slot_number;
    SIM_REQUIRE(parse_bus_id(text, &domain, &bus, &slot_number));
    for (unsigned int index = 0; index < sim_visible_count(); index++) {
        nvmlDevice_t candidate = sim_visible(index);
        const int64_t *facts = sim_state()->gpus[candidate->slot].facts;
        if (facts[FACT_PCI_DOMAIN] == domain && facts[FACT_PCI_BUS] == bus &&
            facts[FACT_PCI_DEVICE] == slot_number) {
            *device = candidate;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_bus_id(const char *name, const char *text, nvmlDevice_t *device)
{
    if (sim_state() == NULL)
        return NVML_ERROR_UNINITIALIZED;
    SIM_REQUIRE(text != NULL && device != NULL);
    nvmlDevice_t found;
    nvmlReturn_t result = find_by_bus_id(text, &found);
    if (result == NVML_SUCCESS)
        return hand_out(name, found, device);
    SIM_TRY(sim_fault(name, -1));
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return by_bus_id(__func__, bus_id, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return by_bus_id(__func__, bus_id, device);
}
