/*
 * What the files of the simulated NVML share: the process's session, and the gate through which
 * every call passes. The gate answers in the order a caller of the real library sees:
 * UNINITIALIZED, an injected fault, INVALID_ARGUMENT for a bad handle, GPU_IS_LOST.
 */
#ifndef SIMULATOR_H
#define SIMULATOR_H

#include <stdbool.h>
#include <stddef.h>

#include "abi.h"
#include "state.h"

/* A handle: callers have its address, and its slot is that of a GPU of the state. */
struct sim_device {
    unsigned int slot;
    bool mig; /* a MIG device: the two numbers below say which */
    unsigned int gpu_instance, compute_instance;
};

/* A handle of a GPU instance, or of a compute instance in one. */
struct sim_instance {
    unsigned int slot, gpu_instance, compute_instance;
};

/* What a handle leads to in the state. For a whole GPU, the last two are NULL. */
struct sim_target {
    struct sim_gpu *gpu;
    struct sim_gpu_instance *instance;
    struct sim_compute_instance *compute;
};

/* session.c */
struct sim_state *sim_state(void);
bool sim_writable(void);
const char *sim_state_path(void);
unsigned int sim_visible_count(void);
nvmlDevice_t sim_visible(unsigned int index);
int sim_index_of(nvmlDevice_t device);
nvmlDevice_t sim_device_in_slot(unsigned int slot);
bool sim_on_host(void);
bool sim_held_by_others(const char *path, unsigned int slot);
bool sim_capability_node(unsigned int minor_number);

/* gate.c */
nvmlReturn_t sim_enter(const char *function);
nvmlReturn_t sim_enter_device(const char *function, nvmlDevice_t device, struct sim_gpu **gpu);
nvmlReturn_t sim_enter_any(const char *function, nvmlDevice_t device, struct sim_target *target);
nvmlReturn_t sim_check_bus(const struct sim_gpu *gpu);
nvmlReturn_t sim_fault(const char *function, int slot);
int sim_arrive(void);
void sim_leave(const int *unused);
int sim_lock(const char *path);
nvmlReturn_t sim_copy_text(const char *text, char *buffer, unsigned int length);
nvmlReturn_t sim_write_fact(struct sim_gpu *gpu, enum sim_fact fact, int64_t value);

/* events.c */
void sim_release_event_sets(void);
void sim_emit(struct sim_state *state, const struct sim_event *event);

/* mig_handles.c */
bool sim_is_mig_handle(nvmlDevice_t device);
nvmlDevice_t sim_mig_handle(unsigned int slot, unsigned int instance, unsigned int compute);
bool sim_mig_visible(nvmlDevice_t mig);
nvmlReturn_t sim_mig_by_uuid(const char *uuid, nvmlDevice_t *device);
nvmlReturn_t sim_may_monitor(void);

/* memory_rules.c */
void sim_cut_to_limit(unsigned int slot, nvmlMemory_v2_t *memory);
void sim_forget_limits(struct sim_state *state, unsigned int slot);

#define SIM_TRY(call)                           \
    do {                                        \
        nvmlReturn_t result_ = (call);          \
        if (result_ != NVML_SUCCESS)            \
            return result_;                     \
    } while (0)

/* Ends the process when the function returns, if a fault kills it after the effect. */
#define SIM_GUARD \
    __attribute__((cleanup(sim_leave), unused)) const int guard_ = sim_arrive()

/* Passes the gate for `device` and leaves its GPU in a variable named gpu. */
#define SIM_ENTER(device) \
    SIM_GUARD; \
    struct sim_gpu *gpu = NULL; \
    SIM_TRY(sim_enter_device(__func__, (device), &gpu))

#define SIM_REQUIRE(condition)                  \
    do {                                        \
        if (!(condition))                       \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

#endif
