/*
 * Not in NVML: what the simulator's own tools do to a machine from outside. They work on a state
 * file given by its path, without a session, so that no injected fault hits them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mig.h"

/* Maps a machine's state for writing. */
nvmlReturn_t sim_open_machine(const char *path, struct sim_machine *machine)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NVML_ERROR_NO_PERMISSION;
    struct stat facts;
    nvmlReturn_t result = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    const off_t size = (off_t)(SIM_STATE_OFFSET + sizeof *machine->state);
    if (fstat(file, &facts) == 0 && facts.st_size >= size) {
        void *address = mmap(NULL, sizeof *machine->state, PROT_READ | PROT_WRITE, MAP_SHARED,
                             file, SIM_STATE_OFFSET);
        result = address == MAP_FAILED ? NVML_ERROR_MEMORY : NVML_SUCCESS;
        machine->state = address;
        machine->path = path;
    }
    close(file);
    if (result == NVML_SUCCESS && machine->state->layout_version != SIM_LAYOUT_VERSION) {
        munmap(machine->state, sizeof *machine->state);
        result = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    return result;
}

static nvmlReturn_t create_both(const struct sim_machine *machine, unsigned int slot,
                                unsigned int profile_id, const nvmlPlacement_t *place,
                                struct sim_instance *made)
{
    made->slot = slot;
    SIM_TRY(sim_create_gpu_instance(machine, slot, profile_id, place, &made->gpu_instance));
    const struct sim_gpu *gpu = &machine->state->gpus[slot];
    const struct sim_mig_profile *profile = sim_profile_of(gpu, made->gpu_instance);
    struct sim_compute_profile whole;
    for (unsigned int index = 0; index < CI_PROFILE_COUNT; index++)
        if (sim_compute_profile(gpu, profile, index, &whole) && whole.slices == profile->slices)
            return sim_create_compute_instance(machine, made, whole.id, NULL,
                                               &made->compute_instance);
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Makes a GPU instance and one compute instance that fills it. A negative start: anywhere. */
NVML_EXPORT nvmlReturn_t nvmlSimulatorCreateMig(const char *state_path, unsigned int slot,
                                                unsigned int profile_id, int start,
                                                struct sim_instance *made)
{
    struct sim_machine machine;
    SIM_REQUIRE(slot < SIM_MAX_GPUS);
    SIM_TRY(sim_open_machine(state_path, &machine));
    const struct sim_mig_profile *profile =
        sim_profile_by_id(&machine.state->gpus[slot], profile_id);
    nvmlPlacement_t place = {.start = (unsigned int)start, .size = profile ? profile->size : 0};
    nvmlReturn_t result =
        create_both(&machine, slot, profile_id, start < 0 ? NULL : &place, made);
    munmap(machine.state, sizeof *machine.state);
    return result;
}

/* Destroys a GPU instance with the compute instances in it. */
NVML_EXPORT nvmlReturn_t nvmlSimulatorDestroyMig(const char *state_path, unsigned int slot,
                                                 unsigned int gpu_instance)
{
    struct sim_machine machine;
    SIM_REQUIRE(slot < SIM_MAX_GPUS && gpu_instance < SIM_MAX_GPU_INSTANCES);
    SIM_TRY(sim_open_machine(state_path, &machine));
    nvmlReturn_t result = NVML_SUCCESS;
    struct sim_instance which = {slot, gpu_instance, 0};
    const struct sim_gpu_instance *instance = &machine.state->gpus[slot].instances[gpu_instance];
    for (; which.compute_instance < SIM_MAX_COMPUTE_INSTANCES; which.compute_instance++)
        if (result == NVML_SUCCESS && instance->compute[which.compute_instance].present)
            result = sim_destroy_compute_instance(&machine, &which);
    if (result == NVML_SUCCESS)
        result = sim_destroy_gpu_instance(&machine, &which);
    munmap(machine.state, sizeof *machine.state);
    return result;
}

/* Switches a GPU's MIG mode as nvmlDeviceSetMigMode does. */
NVML_EXPORT nvmlReturn_t nvmlSimulatorSetMigMode(const char *state_path, unsigned int slot,
                                                 unsigned int mode, nvmlReturn_t *status)
{
    struct sim_machine machine;
    SIM_REQUIRE(slot < SIM_MAX_GPUS && mode <= 1);
    SIM_TRY(sim_open_machine(state_path, &machine));
    nvmlReturn_t result = NVML_ERROR_NOT_SUPPORTED;
    if (machine.state->gpus[slot].facts[FACT_MIG_CURRENT] != SIM_ABSENT)
        result = sim_set_mig_mode(&machine, slot, mode, status);
    munmap(machine.state, sizeof *machine.state);
    return result;
}

/* IN_USE when another process has NVML open and sees the GPU. */
NVML_EXPORT nvmlReturn_t nvmlSimulatorCheckUnused(const char *state_path, unsigned int slot)
{
    return sim_held_by_others(state_path, slot) ? NVML_ERROR_IN_USE : NVML_SUCCESS;
}

/* Makes the files of instances that are due. */
NVML_EXPORT nvmlReturn_t nvmlSimulatorSettle(const char *state_path)
{
    struct sim_machine machine;
    SIM_TRY(sim_open_machine(state_path, &machine));
    int lock = sim_lock(machine.path);
    if (lock >= 0) {
        sim_settle(&machine);
        close(lock);
    }
    munmap(machine.state, sizeof *machine.state);
    return lock < 0 ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}
