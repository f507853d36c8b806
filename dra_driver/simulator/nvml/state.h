/*
 * The simulated machine in the shared state file.
 *
 * The file begins with one page (SIM_STATE_OFFSET bytes) that makes it a loadable, empty ELF
 * object, so that tools which read the sonames of driver libraries accept it. The structure below
 * follows. Every process maps it MAP_SHARED; writers hold an exclusive flock on the file. Readers
 * take no lock: every value that changes after creation is one aligned word.
 *
 * The same layout is written and read by dra_driver/simulator/layout.py; nvmlSimulatorLayout()
 * prints what the C compiler made of it, and a test compares the two.
 */
#ifndef SIMULATOR_STATE_H
#define SIMULATOR_STATE_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>

#define SIM_MAGIC "NVMLSIM"
#define SIM_LAYOUT_VERSION 7u
#define SIM_STATE_OFFSET 4096

#define SIM_MAX_GPUS 32
#define SIM_MAX_FAULTS 64
#define SIM_MAX_EVENTS 256
#define SIM_MAX_LINKS 36
#define SIM_MAX_PROCESSES 512
#define SIM_MAX_MEMORY_LIMITS 256
#define SIM_MAX_ALLOCATIONS 128
#define SIM_MAX_GROUP_DEPTH 16
#define SIM_MAX_MIG_PROFILES 24
#define SIM_MAX_GPU_INSTANCES 15
#define SIM_MAX_COMPUTE_INSTANCES 8
#define SIM_MIG_NAME_SIZE 32
#define SIM_UUID_SIZE 48
#define SIM_TEXT_SIZE 96
#define SIM_PATH_SIZE 256

/* A fact that this card does not have: its getter answers NVML_ERROR_NOT_SUPPORTED. */
#define SIM_ABSENT INT64_MIN

/* Numbers, one word each. Units: bytes, milliwatts, MHz, degrees Celsius. */
#define SIM_FACTS(X) \
    X(MINOR) X(BRAND) X(ARCHITECTURE) X(COMPUTE_MAJOR) X(COMPUTE_MINOR) \
    X(PCI_DOMAIN) X(PCI_BUS) X(PCI_DEVICE) X(PCI_DEVICE_ID) X(PCI_SUBSYSTEM_ID) \
    X(PCIE_ROOT) X(PCIE_SWITCH) X(HOST_NUMA_NODE) X(NUMA_NODE) X(CPU_FIRST) X(CPU_COUNT) \
    X(MEMORY_TOTAL) X(MEMORY_RESERVED) X(MEMORY_USED) X(BAR1_TOTAL) X(BAR1_USED) \
    X(ADDRESSING_MODE) X(MODULE_ID) X(BOARD_ID) X(MULTI_GPU_BOARD) X(VIRTUALIZATION_MODE) \
    X(ECC_CURRENT) X(ECC_PENDING) X(PERSISTENCE_MODE) X(COMPUTE_MODE) X(TIME_SLICE) \
    X(MIG_CURRENT) X(MIG_PENDING) X(MIG_MAX_DEVICES) \
    X(MIG_UNITS) X(MIG_RESET_TO_SWITCH) X(MIG_COMPUTE_REV1) \
    X(FABRIC_STATE) X(FABRIC_STATUS) X(FABRIC_CLIQUE) X(FABRIC_HEALTH) X(C2C_MODE) \
    X(EVENT_TYPES) X(RECOVERY_ACTION) X(SLOWDOWN) \
    X(TEMPERATURE) X(TEMPERATURE_MEMORY) X(TEMPERATURE_SHUTDOWN) X(TEMPERATURE_SLOWDOWN) \
    X(TEMPERATURE_MAX) X(TEMPERATURE_MEMORY_MAX) \
    X(POWER_USAGE) X(POWER_LIMIT) X(POWER_DEFAULT) X(POWER_MIN) X(POWER_MAX) \
    X(CLOCK_GRAPHICS) X(CLOCK_SM) X(CLOCK_MEMORY) X(CLOCK_VIDEO) \
    X(MAX_CLOCK_GRAPHICS) X(MAX_CLOCK_SM) X(MAX_CLOCK_MEMORY) X(MAX_CLOCK_VIDEO) \
    X(APPLICATION_GRAPHICS) X(APPLICATION_MEMORY) \
    X(PCIE_GENERATION) X(PCIE_GENERATION_MAX) X(PCIE_WIDTH) X(PCIE_WIDTH_MAX) \
    X(FAN_SPEED) X(PERFORMANCE_STATE) X(UTILIZATION_GPU) X(UTILIZATION_MEMORY) \
    X(CORES) X(MEMORY_BUS_WIDTH) X(DISPLAY_MODE) X(DISPLAY_ACTIVE) \
    X(ECC_CORRECTED) X(ECC_UNCORRECTED) X(ECC_UNCORRECTED_VOLATILE) X(RETIRED_PAGES) \
    X(ROWS_CORRECTABLE) X(ROWS_UNCORRECTABLE) X(ROWS_PENDING) X(ROWS_FAILED) X(ROW_BANKS)

/* Texts, NUL-terminated; an empty one is absent. */
#define SIM_TEXTS(X) \
    X(UUID) X(NAME) X(SERIAL) X(BOARD_PART_NUMBER) X(VBIOS) X(PCI_BUS_ID) \
    X(INFOROM_IMAGE) X(INFOROM_OEM) X(INFOROM_ECC) X(INFOROM_POWER) X(GSP_FIRMWARE)

#define SIM_ENUM_FACT(name) FACT_##name,
#define SIM_ENUM_TEXT(name) TEXT_##name,
enum sim_fact { SIM_FACTS(SIM_ENUM_FACT) FACT_COUNT };
enum sim_text { SIM_TEXTS(SIM_ENUM_TEXT) TEXT_COUNT };

/* What an NVLink leads to, as nvmlDeviceGetNvLinkRemoteDeviceType counts. */
enum sim_link_end { LINK_TO_GPU = 0, LINK_TO_SWITCH = 2, LINK_TO_NOTHING = 0xff };

/* One NVLink. `kind` is an enum sim_link_end; one that leads to nothing has no `remote_bus_id`. */
struct sim_link {
    uint32_t present;
    uint32_t active;
    uint32_t kind;
    uint32_t version;
    uint32_t remote_device_id;
    char remote_bus_id[28];
};

/* Engines that MIG instances share; a card has as many as its largest profile. */
#define SIM_ENGINES(X) \
    X(MULTIPROCESSORS) X(COPY_ENGINES) X(DECODERS) X(ENCODERS) X(JPEG_ENGINES) X(OFA_ENGINES)
#define SIM_ENUM_ENGINE(name) ENGINE_##name,
enum sim_engine { SIM_ENGINES(SIM_ENUM_ENGINE) ENGINE_COUNT };

/* A GPU instance profile. `index` is its enumeration in queries, bit n of `starts` a place. */
struct sim_mig_profile {
    uint32_t id;
    uint32_t index;
    uint32_t slices;
    uint32_t instances;
    uint32_t size;
    uint32_t starts;
    uint32_t memory_mib;
    uint32_t capabilities;
    uint32_t engines[ENGINE_COUNT];
    char name[SIM_MIG_NAME_SIZE];
};

/* `present` is written last when an instance is made, and first when it is destroyed. */
struct sim_compute_instance {
    uint32_t present;
    uint32_t profile_id;
    uint32_t start;
    uint32_t size;
    uint32_t mig_index;
    uint32_t reserved;
    char uuid[SIM_UUID_SIZE];
};

/* GPU instance n of a GPU lies at instances[n], its compute instance m at compute[m]. */
struct sim_gpu_instance {
    uint32_t present;
    uint32_t profile; /* its place among the GPU's profiles */
    uint32_t start;
    uint32_t size;
    uint64_t changed_ms; /* CLOCK_MONOTONIC; late files count from here */
    struct sim_compute_instance compute[SIM_MAX_COMPUTE_INSTANCES];
};

/* Which list a process is in. */
enum sim_process_kind { PROCESS_COMPUTES, PROCESS_DRAWS, PROCESS_BY_MPS };

/*
 * A process on a GPU, or on one of its instances; both instances are 0xffffffff on a whole GPU.
 * `pid` is the host's. `memory_hidden`: NVML does not know how much memory it has. The next
 * four words are its load, in percent; all 0: idle. `sampled_us`: when its latest sample was taken,
 * by the time of day; 0: it still runs, with a sample each second.
 */
struct sim_process {
    uint32_t active;
    uint32_t slot;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t pid;
    uint32_t kind; /* enum sim_process_kind */
    uint64_t memory;
    uint32_t memory_hidden;
    uint32_t sm;
    uint32_t memory_access;
    uint32_t encoder;
    uint32_t decoder;
    uint32_t reserved;
    uint64_t sampled_us;
};

/* A control group, by its directory. A later directory can have the identity of one that is gone. */
struct sim_group {
    uint64_t device;
    uint64_t inode;
};

/* The driver's own record of a control group's limit on a GPU (backend misc). */
struct sim_memory_limit {
    uint32_t active;
    uint32_t slot;
    struct sim_group group;
    uint64_t soft;
    uint64_t hard; /* UINT64_MAX: none, and the limits of the groups above are hidden by it */
};

/*
 * Memory of a GPU that a process has: `charged` is the memory limit that pays, counted from 1, or 0
 * for none.
 */
struct sim_allocation {
    uint32_t active;
    uint32_t slot;
    uint32_t pid;
    uint32_t charged;
    uint64_t bytes;
};

struct sim_gpu {
    uint32_t present; /* 0: the slot is empty, or another driver has the card */
    uint32_t lost;    /* 1: fallen off the bus, every call answers GPU_IS_LOST */
    int64_t facts[FACT_COUNT];
    char texts[TEXT_COUNT][SIM_TEXT_SIZE];
    uint8_t fabric_cluster[16];
    struct sim_link links[SIM_MAX_LINKS];
    uint32_t mig_profile_count;
    uint32_t reserved;
    struct sim_mig_profile mig_profiles[SIM_MAX_MIG_PROFILES];
    struct sim_gpu_instance instances[SIM_MAX_GPU_INSTANCES];
};

/*
 * A fault: calls of `function` ("*": of any) on GPU `slot` (-1: on any, and calls without a GPU)
 * first sleep delay_ms, then kill the calling process if `kill` says so, and then, unless code is
 * 0, return it. The first `skip` calls succeed. `remaining` counts down; below zero the fault
 * stays. `active` is written last.
 */
enum sim_kill { KILL_NEVER, KILL_BEFORE, KILL_AFTER };

struct sim_fault {
    char function[64];
    int32_t slot;
    int32_t code;
    int64_t remaining;
    int64_t skip;
    uint32_t delay_ms;
    uint32_t kill; /* enum sim_kill: before the call has its effect, or after */
    uint32_t active;
    uint32_t reserved;
};

/* An event; number `sequence` lies at events[sequence % SIM_MAX_EVENTS]. */
struct sim_event {
    uint64_t sequence;
    uint64_t type;
    uint64_t data;
    uint32_t slot;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t reserved;
};

/* What enforces memory limits of control groups: the driver in its own map, or the kernel. */
enum sim_memory_backend { MEMORY_BACKEND_OFF, MEMORY_BACKEND_MISC };

struct sim_state {
    char magic[8];
    uint32_t layout_version;
    uint32_t size;
    uint32_t gpu_count;
    uint32_t driver_loaded;
    uint32_t cuda_driver_version; /* 1000 * major + 10 * minor */
    uint32_t change;              /* a futex: counts events and losses, wakes event waiters */
    uint32_t caps_major;          /* of the device nodes of MIG capabilities */
    uint32_t device_nodes;        /* 1: nodes are real ones, 0: plain files */
    uint32_t late_files_ms;       /* how much later than an instance its /proc file and node come */
    uint32_t memory_backend;      /* enum sim_memory_backend */
    uint32_t mig_change_ms;       /* how long a card makes or destroys an instance */
    uint32_t reserved;
    uint64_t next_event;
    uint64_t pid_namespace; /* the host's, by its number; 0: all callers see all processes */
    char driver_version[80];
    char nvml_version[80];
    char library_folder[SIM_PATH_SIZE]; /* folder of the library, relative to the driver root */
    char cgroup_root[SIM_PATH_SIZE];    /* root of control groups; empty: the mount of cgroup2 */
    struct sim_fault faults[SIM_MAX_FAULTS];
    struct sim_event events[SIM_MAX_EVENTS];
    struct sim_process processes[SIM_MAX_PROCESSES];
    struct sim_memory_limit memory_limits[SIM_MAX_MEMORY_LIMITS];
    struct sim_allocation allocations[SIM_MAX_ALLOCATIONS];
    struct sim_gpu gpus[SIM_MAX_GPUS];
};

/* state_file.c */
bool sim_find_state(char *path);
struct flock sim_holding(unsigned int slot, short kind);

#endif
