/*
 * A process's session with the simulated machine: finds the state file, maps it, and decides at
 * nvmlInit which GPUs this process sees.
 *
 * The state file is NVML_SIMULATOR_STATE or is beside this library as
 * libnvidia-simulator.so.<driver version>: container tools take this name for a driver library, so
 * that it gets into containers with the rest. It is mapped read-only if it cannot be written;
 * setters then answer NO_PERMISSION.
 *
 * A GPU is visible if its device node exists, as with the real driver, which opens it. The folder
 * of the nodes is NVML_SIMULATOR_DEV; or <driver root>/dev if this library is in its place below a
 * driver root with nodes; or /dev, as in a container.
 *
 * A session holds each GPU that it sees, and a card that somebody else holds cannot change its MIG
 * mode or be reset. So it has a shared lock on a byte of the state file for each GPU. The kernel
 * drops it when the process ends, in any way, and distinguishes holders by the open file (fcntl(2),
 * open file description locks), in any container. A session also has the nodes themselves open,
 * only by path because they have no driver: in /proc/<pid>/fd a holder looks as on a node with
 * GPUs, for fuser and others.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "mig.h"

#define NVIDIA_MAJOR 195
#define NVIDIA_CONTROL_MINOR 255

static pthread_mutex_t session_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int references;
static struct sim_state *mapped;
static bool mapped_writable;
static dev_t mapped_device;
static ino_t mapped_inode;
static char state_path[PATH_MAX];
static struct sim_device devices[SIM_MAX_GPUS];
static unsigned int visible[SIM_MAX_GPUS];
static unsigned int visible_count;
static char own_path[PATH_MAX];
static char device_folder[PATH_MAX];
static bool on_host;
static int session_file = -1;
static int node_files[SIM_MAX_GPUS + 1]; /* nvidiactl, then those of the GPUs that are seen */
static unsigned int node_file_count;

/* Taken when the library is loaded: a relative path would mean another file after a chdir. */
__attribute__((constructor)) static void remember_own_path(void)
{
    Dl_info info;
    if (dladdr((void *)remember_own_path, &info) == 0 || info.dli_fname == NULL ||
        realpath(info.dli_fname, own_path) == NULL)
        own_path[0] = '\0';
    for (unsigned int slot = 0; slot < SIM_MAX_GPUS; slot++)
        devices[slot].slot = slot;
}

struct sim_state *sim_state(void) { return atomic_load(&references) > 0 ? mapped : NULL; }
bool sim_writable(void) { return mapped_writable; }
const char *sim_state_path(void) { return state_path; }
bool sim_on_host(void) { return on_host; }
unsigned int sim_visible_count(void) { return visible_count; }

nvmlDevice_t sim_visible(unsigned int index)
{
    return index < visible_count ? &devices[visible[index]] : NULL;
}

nvmlDevice_t sim_device_in_slot(unsigned int slot)
{
    return slot < SIM_MAX_GPUS ? &devices[slot] : NULL;
}

/* The index of a handle, or -1 when it is none of ours. */
int sim_index_of(nvmlDevice_t device)
{
    for (unsigned int index = 0; index < visible_count; index++)
        if (&devices[visible[index]] == device)
            return (int)index;
    return -1;
}

/* The folder of this library, with a trailing slash cut off; empty when unknown. */
static void own_folder(char *folder)
{
    snprintf(folder, PATH_MAX, "%s", own_path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = '\0';
}

/* The state file that was named, or the one beside this library. */
static bool find_state(char *path)
{
    const char *chosen = getenv("NVML_SIMULATOR_STATE");
    if (chosen != NULL && chosen[0] != '\0') {
        snprintf(path, PATH_MAX, "%s", chosen);
        return true;
    }
    own_folder(path);
    return sim_find_state(path);
}

static nvmlReturn_t check_state(const struct sim_state *state, off_t file_size)
{
    if (memcmp(state->magic, SIM_MAGIC, sizeof state->magic) != 0 ||
        state->layout_version != SIM_LAYOUT_VERSION || state->size != sizeof *state ||
        file_size < (off_t)(SIM_STATE_OFFSET + sizeof *state))
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

/* Maps the state file. An earlier mapping is left in place: another thread may still read it. */
static nvmlReturn_t map_state(void)
{
    if (!find_state(state_path))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    bool writable = true;
    int file = open(state_path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        writable = false;
        file = open(state_path, O_RDONLY | O_CLOEXEC);
    }
    if (file < 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    struct stat facts;
    if (fstat(file, &facts) != 0 || facts.st_size < (off_t)(SIM_STATE_OFFSET + sizeof *mapped)) {
        close(file);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    if (mapped != NULL && facts.st_dev == mapped_device && facts.st_ino == mapped_inode &&
        writable == mapped_writable) {
        close(file);
        return check_state(mapped, facts.st_size);
    }
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *address =
        mmap(NULL, sizeof *mapped, protection, MAP_SHARED, file, SIM_STATE_OFFSET);
    close(file);
    if (address == MAP_FAILED)
        return NVML_ERROR_MEMORY;
    mapped = address;
    mapped_writable = writable;
    mapped_device = facts.st_dev;
    mapped_inode = facts.st_ino;
    return check_state(mapped, facts.st_size);
}

/* A node counts if it is the right device, or a plain file in its place. */
static bool node_exists(const char *folder, const char *name, unsigned int major_number,
                        unsigned int minor_number)
{
    char path[PATH_MAX + 64];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (stat(path, &facts) != 0)
        return false;
    if (S_ISCHR(facts.st_mode))
        return facts.st_rdev == makedev(major_number, minor_number);
    return S_ISREG(facts.st_mode);
}

/*
 * Whether this process may open an existing node: by its mode, and by the control group of its
 * container, which access(2) checks, too. It is not opened: another driver may be behind it.
 */
static bool node_permitted(const char *folder, const char *name)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    struct stat facts;
    return stat(path, &facts) != 0 || !S_ISCHR(facts.st_mode) ||
           faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) == 0;
}

/* Writes the folder of the device nodes for this process; see the head of this file. */
static void find_device_folder(char *folder)
{
    on_host = false;
    const char *chosen = getenv("NVML_SIMULATOR_DEV");
    if (chosen != NULL && chosen[0] != '\0') {
        snprintf(folder, PATH_MAX, "%s", chosen);
        return;
    }
    char own[PATH_MAX];
    own_folder(own);
    size_t whole = strlen(own);
    size_t below = strnlen(mapped->library_folder, SIM_PATH_SIZE);
    if (below > 0 && whole > below + 1 && own[whole - below - 1] == '/' &&
        strncmp(own + whole - below, mapped->library_folder, below) == 0) {
        snprintf(folder, PATH_MAX, "%.*s/dev", (int)(whole - below - 1), own);
        if (node_exists(folder, "nvidiactl", NVIDIA_MAJOR, NVIDIA_CONTROL_MINOR)) {
            on_host = true;
            return;
        }
    }
    snprintf(folder, PATH_MAX, "/dev");
}

/* Whether this process has the node of a MIG capability. */
bool sim_capability_node(unsigned int minor_number)
{
    char name[48];
    snprintf(name, sizeof name, "nvidia-caps/nvidia-cap%u", minor_number);
    return node_exists(device_folder, name, mapped->caps_major, minor_number);
}

static int64_t bus_order(unsigned int slot)
{
    const int64_t *facts = mapped->gpus[slot].facts;
    return facts[FACT_PCI_DOMAIN] << 32 | facts[FACT_PCI_BUS] << 8 | facts[FACT_PCI_DEVICE];
}

/* Fills the list of visible GPUs, in PCI order. */
static nvmlReturn_t enumerate(void)
{
    char name[32];
    find_device_folder(device_folder);
    if (!node_exists(device_folder, "nvidiactl", NVIDIA_MAJOR, NVIDIA_CONTROL_MINOR))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (!node_permitted(device_folder, "nvidiactl"))
        return NVML_ERROR_NO_PERMISSION;
    visible_count = 0;
    for (unsigned int slot = 0; slot < mapped->gpu_count && slot < SIM_MAX_GPUS; slot++) {
        const struct sim_gpu *gpu = &mapped->gpus[slot];
        unsigned int minor_number = (unsigned int)gpu->facts[FACT_MINOR];
        snprintf(name, sizeof name, "nvidia%u", minor_number);
        if (!gpu->present ||
            !node_exists(device_folder, name, NVIDIA_MAJOR, minor_number) ||
            !node_permitted(device_folder, name))
            continue;
        unsigned int place = visible_count++;
        for (; place > 0 && bus_order(visible[place - 1]) > bus_order(slot); place--)
            visible[place] = visible[place - 1];
        visible[place] = slot;
    }
    return NVML_SUCCESS;
}

/* Makes files that a process should have made and did not, because it ended. */
static void settle_files(void)
{
    const struct sim_machine machine = {.state = mapped, .path = state_path};
    int lock = sim_lock(state_path);
    if (lock < 0)
        return;
    sim_settle(&machine);
    close(lock);
}

static void open_node(const char *name)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", device_folder, name);
    int file = open(path, O_PATH | O_CLOEXEC);
    if (file >= 0)
        node_files[node_file_count++] = file;
}

static void release_gpus(void)
{
    while (node_file_count > 0)
        close(node_files[--node_file_count]);
    if (session_file >= 0)
        close(session_file);
    session_file = -1;
}

/* Whether a session of another process sees this GPU of a machine. */
bool sim_held_by_others(const char *path, unsigned int slot)
{
    bool ours = session_file >= 0 && strcmp(path, state_path) == 0;
    int file = ours ? session_file : open(path, O_RDONLY | O_CLOEXEC);
    struct flock lock = sim_holding(slot, F_WRLCK);
    bool held = file >= 0 && fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    if (file >= 0 && !ours)
        close(file);
    return held;
}

static void hold_gpus(void)
{
    open_node("nvidiactl");
    session_file = open(state_path, O_RDONLY | O_CLOEXEC);
    int lock = mapped_writable ? sim_lock(state_path) : -1; /* one session begins at a time */
    for (unsigned int index = 0; session_file >= 0 && index < visible_count; index++) {
        if (lock >= 0 && !sim_held_by_others(state_path, visible[index]))
            sim_forget_limits(mapped, visible[index]);
        struct flock held = sim_holding(visible[index], F_RDLCK);
        fcntl(session_file, F_OFD_SETLK, &held);
        char name[32];
        snprintf(name, sizeof name, "nvidia%u",
                 (unsigned int)mapped->gpus[visible[index]].facts[FACT_MINOR]);
        open_node(name);
    }
    if (lock >= 0)
        close(lock);
}

static nvmlReturn_t start_session(void)
{
    SIM_TRY(map_state());
    if (!mapped->driver_loaded)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    SIM_TRY(enumerate());
    if (on_host && mapped_writable)
        settle_files();
    hold_gpus();
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags; /* NO_GPUS and NO_ATTACH only make the real one cheaper */
    pthread_mutex_lock(&session_lock);
    nvmlReturn_t result = NVML_SUCCESS;
    if (atomic_load(&references) == 0)
        result = start_session();
    if (result == NVML_SUCCESS) {
        atomic_fetch_add(&references, 1);
        result = sim_fault(__func__, -1);
        if (result != NVML_SUCCESS && atomic_fetch_sub(&references, 1) == 1)
            release_gpus();
    }
    pthread_mutex_unlock(&session_lock);
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

NVML_EXPORT nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

NVML_EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&session_lock);
    nvmlReturn_t result = NVML_SUCCESS;
    if (atomic_load(&references) == 0)
        result = NVML_ERROR_UNINITIALIZED;
    else if (atomic_fetch_sub(&references, 1) == 1) {
        sim_release_event_sets();
        release_gpus();
    }
    pthread_mutex_unlock(&session_lock);
    return result;
}
