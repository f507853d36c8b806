/*
 * Calls about the driver as a whole: versions, the words for return codes, and the layout of the
 * state file as this library was compiled with it.
 */
#include <stddef.h>
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
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
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

#define LINE(...) used += (size_t)snprintf(text + used, size - used, __VA_ARGS__)
#define FIELD(type, field)                                                              \
    LINE(#type "." #field " %zu %zu\n", offsetof(struct type, field),                   \
         sizeof(((struct type *)NULL)->field))
#define STRUCT(type) LINE(#type " %zu\n", sizeof(struct type))
#define FACT_LINE(name) LINE("fact." #name " %d\n", (int)FACT_##name);
#define TEXT_LINE(name) LINE("text." #name " %d\n", (int)TEXT_##name);

/*
 * Not of NVML: describes the state file's layout, one "name offset size" or "name value" a line,
 * into `text`. Returns the number of bytes, without the final NUL.
 */
NVML_EXPORT size_t nvmlSimulatorLayout(char *text, size_t size)
{
    size_t used = 0;
    STRUCT(sim_state);
    FIELD(sim_state, magic);
    FIELD(sim_state, layout_version);
    FIELD(sim_state, size);
    FIELD(sim_state, gpu_count);
    FIELD(sim_state, driver_loaded);
    FIELD(sim_state, cuda_driver_version);
    FIELD(sim_state, change);
    FIELD(sim_state, next_event);
    FIELD(sim_state, driver_version);
    FIELD(sim_state, nvml_version);
    FIELD(sim_state, library_folder);
    FIELD(sim_state, faults);
    FIELD(sim_state, events);
    FIELD(sim_state, gpus);
    STRUCT(sim_gpu);
    FIELD(sim_gpu, present);
    FIELD(sim_gpu, lost);
    FIELD(sim_gpu, facts);
    FIELD(sim_gpu, texts);
    FIELD(sim_gpu, fabric_cluster);
    FIELD(sim_gpu, links);
    STRUCT(sim_fault);
    FIELD(sim_fault, function);
    FIELD(sim_fault, slot);
    FIELD(sim_fault, code);
    FIELD(sim_fault, remaining);
    FIELD(sim_fault, delay_ms);
    FIELD(sim_fault, active);
    STRUCT(sim_event);
    FIELD(sim_event, sequence);
    FIELD(sim_event, type);
    FIELD(sim_event, data);
    FIELD(sim_event, slot);
    FIELD(sim_event, gpu_instance);
    FIELD(sim_event, compute_instance);
    STRUCT(sim_link);
    FIELD(sim_link, present);
    FIELD(sim_link, active);
    FIELD(sim_link, kind);
    FIELD(sim_link, version);
    FIELD(sim_link, remote_device_id);
    FIELD(sim_link, remote_bus_id);
    SIM_FACTS(FACT_LINE)
    SIM_TEXTS(TEXT_LINE)
    return used;
}
