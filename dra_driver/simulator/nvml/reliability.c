/*
 * Errors a card has seen, and what it keeps in its InfoROM.
 */
#include <string.h>

#include "facts.h"

SIM_STRING(nvmlDeviceGetInforomImageVersion, TEXT_INFOROM_IMAGE)
SIM_NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, FACT_RETIRED_PAGES)

/* Object 0 OEM, 1 ECC, 2 power management. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, unsigned int object,
                                                     char *version, unsigned int length)
{
    static const enum sim_text objects[] = {TEXT_INFOROM_OEM, TEXT_INFOROM_ECC,
                                            TEXT_INFOROM_POWER};
    SIM_ENTER(device);
    SIM_REQUIRE(object < sizeof objects / sizeof objects[0]);
    return sim_copy_text(gpu->texts[objects[object]], version, length);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device)
{
    SIM_ENTER(device);
    return gpu->texts[TEXT_INFOROM_IMAGE][0] != '\0' ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The caller's buffer has 80 bytes by contract. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    SIM_ENTER(device);
    return sim_copy_text(gpu->texts[TEXT_GSP_FIRMWARE], version, 80);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled,
                                                      unsigned int *by_default)
{
    SIM_ENTER(device);
    SIM_REQUIRE(enabled != NULL && by_default != NULL);
    *enabled = *by_default = gpu->texts[TEXT_GSP_FIRMWARE][0] != '\0';
    return NVML_SUCCESS;
}

/* Kind 0 corrected, 1 uncorrected; period 0 since the driver started, 1 ever. */
static nvmlReturn_t ecc_count(const char *function, nvmlDevice_t device, unsigned int kind,
                              unsigned int period, unsigned long long *count)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(function, device, &target)); /* a MIG device has its GPU's counts */
    const struct sim_gpu *gpu = target.gpu;
    SIM_REQUIRE(count != NULL && kind <= 1 && period <= 1);
    if (gpu->facts[FACT_ECC_CURRENT] != 1)
        return NVML_ERROR_NOT_SUPPORTED;
    if (kind == 0)
        SIM_FACT(*count, FACT_ECC_CORRECTED);
    else
        SIM_FACT(*count, period == 0 ? FACT_ECC_UNCORRECTED_VOLATILE : FACT_ECC_UNCORRECTED);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int kind,
                                                     unsigned int period,
                                                     unsigned long long *count)
{
    return ecc_count(__func__, device, kind, period, count);
}

/* Locations: 2 is the device memory, which has all errors here; 1 L2 and 7 SRAM have none. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int kind,
                                                         unsigned int period,
                                                         unsigned int location,
                                                         unsigned long long *count)
{
    SIM_TRY(ecc_count(__func__, device, kind, period, count));
    if (location != 1 && location != 2 && location != 7)
        return NVML_ERROR_NOT_SUPPORTED;
    if (location != 2)
        *count = 0;
    return NVML_SUCCESS;
}

/* The caller asks for the number with *count 0. Cards that remap rows do not retire pages. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause,
                                                   unsigned int *count,
                                                   unsigned long long *addresses)
{
    SIM_ENTER(device);
    SIM_REQUIRE(count != NULL && cause <= 1);
    (void)addresses;
    if (gpu->facts[FACT_RETIRED_PAGES] == SIM_ABSENT)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                                   unsigned int *uncorrectable,
                                                   unsigned int *pending, unsigned int *failed)
{
    SIM_ENTER(device);
    SIM_REQUIRE(correctable != NULL && uncorrectable != NULL && pending != NULL && failed != NULL);
    if (sim_has_instances(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    SIM_FACT(*correctable, FACT_ROWS_CORRECTABLE);
    SIM_FACT(*uncorrectable, FACT_ROWS_UNCORRECTABLE);
    SIM_FACT(*pending, FACT_ROWS_PENDING);
    SIM_FACT(*failed, FACT_ROWS_FAILED);
    return NVML_SUCCESS;
}

/* Every bank with a remapped row has used up a little of its spare rows. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device,
                                                           nvmlRowRemapperHistogram_t *histogram)
{
    SIM_ENTER(device);
    SIM_REQUIRE(histogram != NULL);
    unsigned int banks, correctable, uncorrectable;
    SIM_FACT(banks, FACT_ROW_BANKS);
    SIM_FACT(correctable, FACT_ROWS_CORRECTABLE);
    SIM_FACT(uncorrectable, FACT_ROWS_UNCORRECTABLE);
    unsigned int used = correctable + uncorrectable < banks ? correctable + uncorrectable : banks;
    memset(histogram, 0, sizeof *histogram);
    histogram->high = used;
    histogram->max = banks - used;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, unsigned int mode)
{
    SIM_ENTER(device);
    SIM_REQUIRE(mode <= 1);
    return sim_write_fact(gpu, FACT_ECC_PENDING, mode); /* takes effect at the next boot */
}

/* What no simulated card has; the gate still answers first. */
#define UNSUPPORTED(symbol)                                                                \
    NVML_EXPORT nvmlReturn_t symbol(nvmlDevice_t device, void *a, void *b, void *c)        \
    {                                                                                      \
        SIM_ENTER(device);                                                                 \
        (void)gpu;                                                                         \
        (void)a;                                                                           \
        (void)b;                                                                           \
        (void)c;                                                                           \
        return NVML_ERROR_NOT_SUPPORTED;                                                   \
    }

UNSUPPORTED(nvmlDeviceGetAutoBoostedClocksEnabled)
UNSUPPORTED(nvmlDeviceGetBridgeChipInfo)
UNSUPPORTED(nvmlDeviceGetConfComputeProtectedMemoryUsage)
UNSUPPORTED(nvmlDeviceGetDriverModel)
UNSUPPORTED(nvmlDeviceGetGpuOperationMode)
UNSUPPORTED(nvmlDeviceGetGridLicensableFeatures_v4)
UNSUPPORTED(nvmlDeviceGetHostVgpuMode)
UNSUPPORTED(nvmlDeviceGetLastBBXFlushTime)
UNSUPPORTED(nvmlDeviceGetSramEccErrorStatus)
UNSUPPORTED(nvmlDeviceGetSupportedMemoryClocks)
UNSUPPORTED(nvmlDeviceGetSupportedGraphicsClocks)
UNSUPPORTED(nvmlDeviceGetViolationStatus)
UNSUPPORTED(nvmlDeviceGetAccountingPids)
