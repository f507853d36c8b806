/*
 * Errors a card has seen, what it keeps in its InfoROM, numbered fields, and the processes on it.
 */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

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
    struct sim_gpu *gpu = NULL;
    SIM_TRY(sim_enter_device(function, device, &gpu));
    SIM_REQUIRE(count != NULL && kind <= 1 && period <= 1);
    if (gpu->facts[FACT_ECC_CURRENT] != 1)
        return NVML_ERROR_NOT_SUPPORTED;
    SIM_FACT(*count, kind == 0 ? FACT_ECC_CORRECTED : FACT_ECC_UNCORRECTED);
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

enum { VALUE_UNSIGNED = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

/* Field ids that answer with one fact. Units are NVML's: milliwatts, degrees. */
static const struct {
    unsigned int id;
    enum sim_fact fact;
} fields[] = {
    {82, FACT_TEMPERATURE_MEMORY},
    {185, FACT_POWER_USAGE},  /* averaged */
    {186, FACT_POWER_USAGE},  /* now */
    {187, FACT_POWER_MIN},
    {188, FACT_POWER_MAX},
    {189, FACT_POWER_DEFAULT},
    {190, FACT_POWER_LIMIT},  /* in force */
    {192, FACT_POWER_LIMIT},  /* asked for */
    {193, FACT_TEMPERATURE_SHUTDOWN},
    {194, FACT_TEMPERATURE_SLOWDOWN},
    {195, FACT_TEMPERATURE_MEMORY_MAX},
    {196, FACT_TEMPERATURE_MAX},
    {230, FACT_RECOVERY_ACTION},
};

#define FIELD_LINKS_TO_SWITCHES 147

/* How many NVLinks lead to a switch; NOT_SUPPORTED for a card whose links lead nowhere. */
static nvmlReturn_t count_links(const struct sim_gpu *gpu, nvmlFieldValue_t *field)
{
    field->valueType = VALUE_UNSIGNED;
    field->value.uiVal = 0;
    for (unsigned int i = 0; i < SIM_MAX_LINKS; i++)
        field->value.uiVal += gpu->links[i].present && gpu->links[i].kind == 1;
    return field->value.uiVal > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t read_field(const struct sim_gpu *gpu, nvmlFieldValue_t *field)
{
    if (field->fieldId == FIELD_LINKS_TO_SWITCHES)
        return count_links(gpu, field);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].id != field->fieldId)
            continue;
        /* Scope 1 is the module around the GPU, which only some boards measure. */
        bool power = field->fieldId >= 185 && field->fieldId <= 192;
        if ((power && field->scopeId != 0) || gpu->facts[fields[i].fact] == SIM_ABSENT)
            return NVML_ERROR_NOT_SUPPORTED;
        field->valueType = VALUE_UNSIGNED;
        field->value.uiVal = (unsigned int)gpu->facts[fields[i].fact];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Each field has its own answer; the call succeeds when it could be asked. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
                                                  nvmlFieldValue_t *values)
{
    SIM_ENTER(device);
    SIM_REQUIRE(values != NULL && count > 0);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        values[i].valueType = VALUE_UNSIGNED_LONG_LONG;
        values[i].value.ullVal = 0;
        values[i].nvmlReturn = read_field(gpu, &values[i]);
    }
    return NVML_SUCCESS;
}

/* No process runs on the GPU: nothing here computes. */
#define NO_PROCESSES(symbol)                                                               \
    NVML_EXPORT nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count,              \
                                    nvmlProcessInfo_t *processes)                          \
    {                                                                                      \
        SIM_ENTER(device);                                                                 \
        SIM_REQUIRE(count != NULL);                                                        \
        (void)processes;                                                                   \
        *count = 0;                                                                        \
        return NVML_SUCCESS;                                                               \
    }

NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

NVML_EXPORT nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, unsigned int mode)
{
    SIM_ENTER(device);
    SIM_REQUIRE(mode <= 1);
    return sim_write_fact(gpu, FACT_ECC_PENDING, mode); /* takes effect at the next boot */
}

/* What no simulated card has; the gate still speaks first. */
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
