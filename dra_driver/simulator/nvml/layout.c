/*
 * Not in NVML: the layout of the state file in this library, as a text that a test compares with
 * the layout in Python.
 */
#include <stddef.h>
#include <stdio.h>

#include "simulator.h"

#define LINE(...) used += (size_t)snprintf(text + used, size - used, __VA_ARGS__)
#define FIELD(type, field)                                                              \
    LINE(#type "." #field " %zu %zu\n", offsetof(struct type, field),                   \
         sizeof(((struct type *)NULL)->field))
#define STRUCT(type) LINE(#type " %zu\n", sizeof(struct type))
#define FACT_LINE(name) LINE("fact." #name " %d\n", (int)FACT_##name);
#define TEXT_LINE(name) LINE("text." #name " %d\n", (int)TEXT_##name);
#define ENGINE_LINE(name) LINE("engine." #name " %d\n", (int)ENGINE_##name);

static size_t describe_machine(char *text, size_t size, size_t used)
{
    STRUCT(sim_state);
    FIELD(sim_state, magic);
    FIELD(sim_state, layout_version);
    FIELD(sim_state, size);
    FIELD(sim_state, gpu_count);
    FIELD(sim_state, driver_loaded);
    FIELD(sim_state, cuda_driver_version);
    FIELD(sim_state, change);
    FIELD(sim_state, caps_major);
    FIELD(sim_state, device_nodes);
    FIELD(sim_state, late_files_ms);
    FIELD(sim_state, memory_backend);
    FIELD(sim_state, mig_change_ms);
    FIELD(sim_state, next_event);
    FIELD(sim_state, pid_namespace);
    FIELD(sim_state, driver_version);
    FIELD(sim_state, nvml_version);
    FIELD(sim_state, library_folder);
    FIELD(sim_state, cgroup_root);
    FIELD(sim_state, faults);
    FIELD(sim_state, events);
    FIELD(sim_state, processes);
    FIELD(sim_state, memory_limits);
    FIELD(sim_state, allocations);
    FIELD(sim_state, gpus);
    STRUCT(sim_fault);
    FIELD(sim_fault, function);
    FIELD(sim_fault, slot);
    FIELD(sim_fault, code);
    FIELD(sim_fault, remaining);
    FIELD(sim_fault, skip);
    FIELD(sim_fault, delay_ms);
    FIELD(sim_fault, kill);
    FIELD(sim_fault, active);
    STRUCT(sim_event);
    FIELD(sim_event, sequence);
    FIELD(sim_event, type);
    FIELD(sim_event, data);
    FIELD(sim_event, slot);
    FIELD(sim_event, gpu_instance);
    FIELD(sim_event, compute_instance);
    STRUCT(sim_process);
    FIELD(sim_process, active);
    FIELD(sim_process, slot);
    FIELD(sim_process, gpu_instance);
    FIELD(sim_process, compute_instance);
    FIELD(sim_process, pid);
    FIELD(sim_process, kind);
    FIELD(sim_process, memory);
    FIELD(sim_process, memory_hidden);
    FIELD(sim_process, sm);
    FIELD(sim_process, memory_access);
    FIELD(sim_process, encoder);
    FIELD(sim_process, decoder);
    FIELD(sim_process, sampled_us);
    return used;
}

static size_t describe_gpu(char *text, size_t size, size_t used)
{
    STRUCT(sim_gpu);
    FIELD(sim_gpu, present);
    FIELD(sim_gpu, lost);
    FIELD(sim_gpu, facts);
    FIELD(sim_gpu, texts);
    FIELD(sim_gpu, fabric_cluster);
    FIELD(sim_gpu, links);
    FIELD(sim_gpu, mig_profile_count);
    FIELD(sim_gpu, mig_profiles);
    FIELD(sim_gpu, instances);
    STRUCT(sim_link);
    FIELD(sim_link, present);
    FIELD(sim_link, active);
    FIELD(sim_link, kind);
    FIELD(sim_link, version);
    FIELD(sim_link, remote_device_id);
    FIELD(sim_link, remote_bus_id);
    return used;
}

static size_t describe_mig(char *text, size_t size, size_t used)
{
    STRUCT(sim_mig_profile);
    FIELD(sim_mig_profile, id);
    FIELD(sim_mig_profile, index);
    FIELD(sim_mig_profile, slices);
    FIELD(sim_mig_profile, instances);
    FIELD(sim_mig_profile, size);
    FIELD(sim_mig_profile, starts);
    FIELD(sim_mig_profile, memory_mib);
    FIELD(sim_mig_profile, capabilities);
    FIELD(sim_mig_profile, engines);
    FIELD(sim_mig_profile, name);
    STRUCT(sim_gpu_instance);
    FIELD(sim_gpu_instance, present);
    FIELD(sim_gpu_instance, profile);
    FIELD(sim_gpu_instance, start);
    FIELD(sim_gpu_instance, size);
    FIELD(sim_gpu_instance, changed_ms);
    FIELD(sim_gpu_instance, compute);
    STRUCT(sim_compute_instance);
    FIELD(sim_compute_instance, present);
    FIELD(sim_compute_instance, profile_id);
    FIELD(sim_compute_instance, start);
    FIELD(sim_compute_instance, size);
    FIELD(sim_compute_instance, mig_index);
    FIELD(sim_compute_instance, uuid);
    return used;
}

static size_t describe_memory(char *text, size_t size, size_t used)
{
    STRUCT(sim_group);
    FIELD(sim_group, device);
    FIELD(sim_group, inode);
    STRUCT(sim_memory_limit);
    FIELD(sim_memory_limit, active);
    FIELD(sim_memory_limit, slot);
    FIELD(sim_memory_limit, group);
    FIELD(sim_memory_limit, soft);
    FIELD(sim_memory_limit, hard);
    STRUCT(sim_allocation);
    FIELD(sim_allocation, active);
    FIELD(sim_allocation, slot);
    FIELD(sim_allocation, pid);
    FIELD(sim_allocation, charged);
    FIELD(sim_allocation, bytes);
    return used;
}

/*
 * Describes the layout, one "name offset size" or "name value" a line, into `text`. Returns the
 * number of bytes, without the final NUL.
 */
NVML_EXPORT size_t nvmlSimulatorLayout(char *text, size_t size)
{
    size_t used = describe_machine(text, size, 0);
    used = describe_gpu(text, size, used);
    used = describe_mig(text, size, used);
    used = describe_memory(text, size, used);
    SIM_FACTS(FACT_LINE)
    SIM_TEXTS(TEXT_LINE)
    SIM_ENGINES(ENGINE_LINE)
    return used;
}
