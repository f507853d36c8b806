/*
 * The files the kernel modules show for MIG instances: below /proc/driver/nvidia/capabilities one
 * `access` file each, and below /dev/nvidia-caps the node it names. They are updated to match
 * the state whenever an instance is made or destroyed, later if the machine is set so, and at
 * nvmlInit, in case a process ended before its files were made.
 *
 * Only a folder with the simulator's marker is written to. If a node cannot be made, the /proc file
 * exists without it, as on a node where nvidia-modprobe has not run.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "mig.h"

#define MARKER ".simulated-machine.json"
#define PATH_SIZE (PATH_MAX + 160)
#define ACCESS_MODE 0444 /* like the driver: processes with the node may use the instance */

/* What the files of one GPU depend on. */
struct place {
    const struct sim_state *state;
    char root[PATH_MAX];
    unsigned int gpu_minor;
};

uint64_t sim_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Finds the driver root of a state file; false if it has none. */
static bool find_root(const struct sim_machine *machine, char root[PATH_MAX])
{
    char marker[PATH_SIZE];
    if (realpath(machine->path, root) == NULL)
        return false;
    char *slash = strrchr(root, '/');
    size_t below = strnlen(machine->state->library_folder, SIM_PATH_SIZE);
    size_t length = (size_t)(slash - root);
    if (below == 0 || length <= below || root[length - below - 1] != '/' ||
        strncmp(root + length - below, machine->state->library_folder, below) != 0)
        return false;
    root[length - below - 1] = '\0';
    snprintf(marker, sizeof marker, "%s/%s", root, MARKER);
    return access(marker, F_OK) == 0;
}

/* Writes a file by rename, so that no reader sees half of it. */
static void write_file(const char *path, const char *text)
{
    char temporary[PATH_SIZE + 16];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "we");
    if (file == NULL)
        return;
    fputs(text, file);
    if (fclose(file) == 0)
        rename(temporary, path);
    else
        unlink(temporary);
}

static void make_node(const struct place *place, unsigned int minor_number)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap%u", place->root, minor_number);
    if (!place->state->device_nodes)
        write_file(path, "");
    else if (mknod(path, S_IFCHR | ACCESS_MODE,
                   makedev(place->state->caps_major, minor_number)) != 0)
        return;
    chmod(path, ACCESS_MODE);
}

static void remove_node(const struct place *place, unsigned int minor_number)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap%u", place->root, minor_number);
    unlink(path);
}

/* Makes or removes one capability: a folder with its access file, and the node. */
static void settle_capability(const struct place *place, const char *name, bool wanted,
                              unsigned int minor_number)
{
    char folder[PATH_SIZE], path[PATH_SIZE + 16], text[96];
    snprintf(folder, sizeof folder, "%s/proc/driver/nvidia/capabilities/gpu%u/mig/%s", place->root,
             place->gpu_minor, name);
    snprintf(path, sizeof path, "%s/access", folder);
    if ((access(path, F_OK) == 0) == wanted)
        return;
    if (!wanted) {
        remove_node(place, minor_number);
        unlink(path);
        rmdir(folder);
        return;
    }
    snprintf(text, sizeof text, "DeviceFileMinor: %u\nDeviceFileMode: %d\nDeviceFileModify: 1\n",
             minor_number, ACCESS_MODE);
    mkdir(folder, 0755);
    make_node(place, minor_number);
    write_file(path, text);
}

static bool is_due(const struct sim_state *state, const struct sim_gpu_instance *instance)
{
    return sim_now_ms() >= instance->changed_ms + state->late_files_ms;
}

static void settle_at(const struct place *place, const struct sim_gpu *gpu, unsigned int gi)
{
    const struct sim_gpu_instance *instance = &gpu->instances[gi];
    unsigned int minor_number = sim_instance_minor(place->gpu_minor, gi);
    char name[32];
    if (instance->present && !is_due(place->state, instance))
        return;
    snprintf(name, sizeof name, "gi%u", gi);
    if (instance->present)
        settle_capability(place, name, true, minor_number);
    for (unsigned int ci = 0; ci < SIM_MAX_COMPUTE_INSTANCES; ci++) {
        bool wanted = instance->present && instance->compute[ci].present;
        snprintf(name, sizeof name, "gi%u/ci%u", gi, ci);
        settle_capability(place, name, wanted, minor_number + 1 + ci);
    }
    snprintf(name, sizeof name, "gi%u", gi);
    if (!instance->present)
        settle_capability(place, name, false, minor_number);
}

/* Updates the files of one GPU instance and what is in it, if they are due. */
void sim_settle_instance(const struct sim_machine *machine, unsigned int slot, unsigned int id)
{
    const struct sim_gpu *gpu = &machine->state->gpus[slot];
    struct place place = {.state = machine->state,
                          .gpu_minor = (unsigned int)gpu->facts[FACT_MINOR]};
    if (find_root(machine, place.root))
        settle_at(&place, gpu, id);
}

/* Does the same for all GPUs in MIG mode. The caller holds the writers' lock. */
void sim_settle(const struct sim_machine *machine)
{
    struct place place = {.state = machine->state};
    bool found = false;
    for (unsigned int slot = 0; slot < machine->state->gpu_count && slot < SIM_MAX_GPUS; slot++) {
        const struct sim_gpu *gpu = &machine->state->gpus[slot];
        if (!gpu->present || gpu->facts[FACT_MIG_CURRENT] != 1)
            continue;
        if (!found && !find_root(machine, place.root))
            return;
        found = true;
        place.gpu_minor = (unsigned int)gpu->facts[FACT_MINOR];
        for (unsigned int gi = 0; gi < SIM_MAX_GPU_INSTANCES; gi++)
            settle_at(&place, gpu, gi);
    }
}

static void *settle_after_a_while(void *path)
{
    struct sim_machine machine;
    if (sim_open_machine(path, &machine) == NVML_SUCCESS) {
        unsigned int wait = machine.state->late_files_ms + 1;
        const struct timespec delay = {.tv_sec = wait / 1000,
                                       .tv_nsec = (long)(wait % 1000) * 1000000L};
        nanosleep(&delay, NULL);
        int lock = sim_lock(machine.path);
        if (lock >= 0) {
            sim_settle(&machine);
            close(lock);
        }
        munmap(machine.state, sizeof *machine.state);
    }
    free(path);
    return NULL;
}

/* Makes late files, while the caller continues. */
void sim_settle_later(const struct sim_machine *machine)
{
    pthread_t thread;
    char *path = machine->state->late_files_ms > 0 ? strdup(machine->path) : NULL;
    if (path == NULL)
        return;
    if (pthread_create(&thread, NULL, settle_after_a_while, path) != 0)
        free(path);
    else
        pthread_detach(thread);
}
