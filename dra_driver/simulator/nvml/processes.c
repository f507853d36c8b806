/*
 * The processes on a GPU or a MIG device: who they are, what memory they have, how busy they are.
 *
 * As in the kernel driver: PIDs are those of the caller's PID namespace, and processes outside it
 * are left out silently; samples of busy processes have the host's PID. A real driver shows a
 * container its own processes, which is not simulated. A whole GPU in MIG mode lists the processes
 * of all its instances, only to root, and is not sampled. An idle process has no sample, and
 * neither has a client of MPS: its server is sampled instead. A client is in the list of computing
 * processes as well as in its own (an H100 with R580). Samples stay when they are read: old ones
 * are returned again with the others.
 */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "facts.h"
#include "mig.h"

#define SAMPLE_US UINT64_C(1000000)
#define NOT_AVAILABLE UINT64_MAX

static bool sees_processes(void)
{
    struct stat facts;
    uint64_t host = sim_state()->pid_namespace;
    return host == 0 || (stat("/proc/self/ns/pid", &facts) == 0 && facts.st_ino == host);
}

static bool is_on(const struct sim_process *process, nvmlDevice_t device,
                  const struct sim_target *target)
{
    return process->active && process->slot == device->slot &&
           (target->compute == NULL || (process->gpu_instance == device->gpu_instance &&
                                        process->compute_instance == device->compute_instance));
}

/* The processes of one kind on a GPU with all its instances, or on one MIG device. */
static nvmlReturn_t list_processes(const char *function, nvmlDevice_t device,
                                   enum sim_process_kind kind, unsigned int *count,
                                   nvmlProcessInfo_t *processes)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(function, device, &target));
    SIM_REQUIRE(count != NULL && (processes != NULL || *count == 0));
    if (target.compute == NULL && target.gpu->facts[FACT_MIG_CURRENT] == 1 && geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    unsigned int room = *count, used = 0;
    bool seen = sees_processes();
    for (unsigned int i = 0; i < SIM_MAX_PROCESSES && seen; i++) {
        const struct sim_process *process = &sim_state()->processes[i];
        bool listed = process->kind == kind ||
                      (kind == PROCESS_COMPUTES && process->kind == PROCESS_BY_MPS);
        if (!listed || !is_on(process, device, &target))
            continue;
        if (used < room)
            processes[used] =
                (nvmlProcessInfo_t){process->pid,
                                    process->memory_hidden ? NOT_AVAILABLE : process->memory,
                                    process->gpu_instance, process->compute_instance};
        used++;
    }
    *count = used;
    return used > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                 unsigned int *count,
                                                                 nvmlProcessInfo_t *processes)
{
    return list_processes(__func__, device, PROCESS_COMPUTES, count, processes);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device,
                                                                  unsigned int *count,
                                                                  nvmlProcessInfo_t *processes)
{
    return list_processes(__func__, device, PROCESS_DRAWS, count, processes);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                    unsigned int *count,
                                                                    nvmlProcessInfo_t *processes)
{
    return list_processes(__func__, device, PROCESS_BY_MPS, count, processes);
}

/* When the latest sample of a process was taken; 0 if there is none. */
static uint64_t sampled(const struct sim_process *process)
{
    if (process->kind == PROCESS_BY_MPS ||
        process->sm + process->memory_access + process->encoder + process->decoder == 0)
        return 0;
    if (process->sampled_us != 0)
        return process->sampled_us;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    return us - us % SAMPLE_US;
}

/*
 * Puts samples into at most `room` places; NOT_FOUND if none is newer than `since`. Without places
 * it returns how many there are, which may change at any time.
 */
static nvmlReturn_t list_samples(const char *function, nvmlDevice_t device, uint64_t since,
                                 bool has_room, unsigned int *count,
                                 nvmlProcessUtilizationInfo_v1_t *samples)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(function, device, &target));
    SIM_REQUIRE(count != NULL);
    if (target.compute != NULL || target.gpu->facts[FACT_MIG_CURRENT] == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned int room = has_room ? *count : 0, used = 0, newer = 0;
    for (unsigned int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &sim_state()->processes[i];
        uint64_t at = is_on(process, device, &target) ? sampled(process) : 0;
        if (at == 0)
            continue;
        if (used < room)
            samples[used] = (nvmlProcessUtilizationInfo_v1_t){
                at, process->pid, process->sm, process->memory_access, process->encoder,
                process->decoder, 0, 0};
        newer += at > since;
        used++;
    }
    *count = used;
    if (used > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return newer == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                         nvmlProcessUtilizationSample_t *samples,
                                                         unsigned int *count,
                                                         unsigned long long since)
{
    nvmlProcessUtilizationInfo_v1_t found[SIM_MAX_PROCESSES];
    unsigned int room = count != NULL && *count < SIM_MAX_PROCESSES ? *count : SIM_MAX_PROCESSES;
    unsigned int *told = count != NULL ? &room : NULL;
    nvmlReturn_t result = list_samples(__func__, device, since, samples != NULL, told, found);
    if (count != NULL && (result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE))
        *count = room;
    for (unsigned int i = 0; result == NVML_SUCCESS && samples != NULL && i < room; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){found[i].pid,     found[i].timeStamp,
                                                      found[i].smUtil,  found[i].memUtil,
                                                      found[i].encUtil, found[i].decUtil};
    return result;
}

/* The same in another form, as of driver R550. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
    nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    if (info != NULL && info->version != NVML_VERSION_OF(nvmlProcessesUtilizationInfo_v1_t, 1) &&
        sim_state() != NULL)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlProcessesUtilizationInfo_v1_t none = {0};
    nvmlProcessesUtilizationInfo_v1_t *asked = info != NULL ? info : &none;
    return list_samples(__func__, device, asked->lastSeenTimeStamp, asked->procUtilArray != NULL,
                        info != NULL ? &info->processSamplesCount : NULL, asked->procUtilArray);
}
