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

/* A handle: its address is what callers hold, its slot says which GPU of the state it means. */
struct sim_device {
    unsigned int slot;
};

/* session.c */
struct sim_state *sim_state(void);
bool sim_writable(void);
const char *sim_state_path(void);
unsigned int sim_visible_count(void);
nvmlDevice_t sim_visible(unsigned int index);
int sim_index_of(nvmlDevice_t device);
nvmlDevice_t sim_device_in_slot(unsigned int slot);

/* gate.c */
nvmlReturn_t sim_enter(const char *function);
nvmlReturn_t sim_enter_device(const char *function, nvmlDevice_t device, struct sim_gpu **gpu);
nvmlReturn_t sim_fault(const char *function, int slot);
nvmlReturn_t sim_copy_text(const char *text, char *buffer, unsigned int length);
nvmlReturn_t sim_write_fact(struct sim_gpu *gpu, enum sim_fact fact, int64_t value);

/* events.c */
void sim_release_event_sets(void);

#define SIM_TRY(call)                           \
    do {                                        \
        nvmlReturn_t result_ = (call);          \
        if (result_ != NVML_SUCCESS)            \
            return result_;                     \
    } while (0)

/* Passes the gate for `device` and leaves its GPU in a variable named gpu. */
#define SIM_ENTER(device) \
    struct sim_gpu *gpu = NULL; \
    SIM_TRY(sim_enter_device(__func__, (device), &gpu))

#define SIM_REQUIRE(condition)                  \
    do {                                        \
        if (!(condition))                       \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

#endif
