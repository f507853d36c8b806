/*
 * MIG as far as a machine without MIG instances goes: the mode, how many MIG devices there could
 * be, and that none is there. A card without MIG answers NOT_SUPPORTED for the mode and 0 for the
 * count, as the real library does.
 */
#include "facts.h"

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                              unsigned int *pending)
{
    SIM_ENTER(device);
    SIM_REQUIRE(current != NULL && pending != NULL);
    SIM_FACT(*current, FACT_MIG_CURRENT);
    SIM_FACT(*pending, FACT_MIG_PENDING);
    return NVML_SUCCESS;
}

/* Zero unless the card can do MIG and its mode is on. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    SIM_ENTER(device);
    SIM_REQUIRE(count != NULL);
    *count = gpu->facts[FACT_MIG_CURRENT] == 1 ? (unsigned int)gpu->facts[FACT_MIG_MAX_DEVICES] : 0;
    return NVML_SUCCESS;
}

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
    return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    SIM_ENTER(device);
    SIM_REQUIRE(is_mig != NULL);
    *is_mig = 0;
    return NVML_SUCCESS;
}
