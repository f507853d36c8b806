/*
 * Calls about the driver as a whole: versions, and the words for return codes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simulator.h"

static const struct {
    nvmlReturn_t code;
    const char *text;
} error_texts[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_IN_USE, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "The version of the argument is not supported"},
    {NVML_ERROR_UNKNOWN, "Unknown Error"},
};

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    for (size_t i = 0; i < sizeof error_texts / sizeof error_texts[0]; i++)
        if (error_texts[i].code == result)
            return error_texts[i].text;
    return "Unknown Error";
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    SIM_TRY(sim_enter(__func__));
    return sim_copy_text(sim_state()->driver_version, version, length);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    SIM_TRY(sim_enter(__func__));
    return sim_copy_text(sim_state()->nvml_version, version, length);
}

static nvmlReturn_t cuda_version(int *version)
{
    SIM_REQUIRE(version != NULL);
    *version = (int)sim_state()->cuda_driver_version;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    SIM_TRY(sim_enter(__func__));
    return cuda_version(version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    SIM_TRY(sim_enter(__func__));
    return cuda_version(version);
}

/* The name of a process, from its /proc entry as this process sees it. */
NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    SIM_TRY(sim_enter(__func__));
    SIM_REQUIRE(name != NULL && length > 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NVML_ERROR_NOT_FOUND;
    size_t size = fread(name, 1, length - 1, file);
    fclose(file);
    name[size] = '\0';
    return size > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
