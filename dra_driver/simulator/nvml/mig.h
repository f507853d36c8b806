/*
 * MIG inside the simulator. Everything that changes instances takes a machine, that is a mapped
 * state file, and holds its writers' lock; so NVML's calls and the simulator's own tools share it.
 */
#ifndef SIMULATOR_MIG_H
#define SIMULATOR_MIG_H

#include "simulator.h"

struct sim_machine {
    struct sim_state *state;
    const char *path; /* of the state file */
};

/* What a compute instance profile is in a GPU instance of a given profile. */
struct sim_compute_profile {
    unsigned int id, index, slices, instances, starts, multiprocessors;
};

enum { GI_PROFILE_COUNT = 18, CI_PROFILE_COUNT = 9, CI_ENGINE_PROFILE_COUNT = 1 };

/* mig_model.c */
const struct sim_mig_profile *sim_profile_by_id(const struct sim_gpu *gpu, unsigned int id);
const struct sim_mig_profile *sim_profile_by_index(const struct sim_gpu *gpu, unsigned int index);
const struct sim_mig_profile *sim_profile_of(const struct sim_gpu *gpu, unsigned int instance);
unsigned int sim_remaining(const struct sim_gpu *gpu, const struct sim_mig_profile *profile);
nvmlReturn_t sim_find_place(const struct sim_gpu *gpu, const struct sim_mig_profile *profile,
                            const nvmlPlacement_t *wanted, unsigned int *start);
unsigned int sim_instance_id(const struct sim_gpu *gpu, unsigned int start, unsigned int size);
bool sim_compute_profile(const struct sim_gpu *gpu, const struct sim_mig_profile *parent,
                         unsigned int index, struct sim_compute_profile *profile);
unsigned int sim_compute_remaining(const struct sim_gpu_instance *instance,
                                   const struct sim_compute_profile *profile);
nvmlReturn_t sim_find_compute_place(const struct sim_gpu_instance *instance,
                                    const struct sim_compute_profile *profile,
                                    const nvmlPlacement_t *wanted, unsigned int *start);
void sim_mig_uuid(const char *gpu_uuid, unsigned int instance, unsigned int start, char *uuid);
void sim_compute_name(const struct sim_mig_profile *parent, unsigned int slices, char *name,
                      size_t size);

/* mig_instances.c */
nvmlReturn_t sim_create_gpu_instance(const struct sim_machine *machine, unsigned int slot,
                                     unsigned int profile_id, const nvmlPlacement_t *wanted,
                                     unsigned int *id);
nvmlReturn_t sim_create_compute_instance(const struct sim_machine *machine,
                                         const struct sim_instance *parent,
                                         unsigned int profile_id, const nvmlPlacement_t *wanted,
                                         unsigned int *id);
nvmlReturn_t sim_destroy_gpu_instance(const struct sim_machine *machine,
                                      const struct sim_instance *instance);
nvmlReturn_t sim_destroy_compute_instance(const struct sim_machine *machine,
                                          const struct sim_instance *compute);
nvmlReturn_t sim_set_mig_mode(const struct sim_machine *machine, unsigned int slot,
                              unsigned int mode, nvmlReturn_t *status);

/* mig_files.c */
void sim_settle_instance(const struct sim_machine *machine, unsigned int slot, unsigned int id);
void sim_settle(const struct sim_machine *machine);
void sim_settle_later(const struct sim_machine *machine);
uint64_t sim_now_ms(void);

/* tools.c */
nvmlReturn_t sim_open_machine(const char *path, struct sim_machine *machine);

/* mig_handles.c */
nvmlGpuInstance_t sim_gpu_instance_handle(unsigned int slot, unsigned int id);
nvmlComputeInstance_t sim_compute_instance_handle(unsigned int slot, unsigned int instance,
                                                  unsigned int id);
nvmlReturn_t sim_enter_instance(const char *function, nvmlGpuInstance_t instance,
                                struct sim_target *target);
nvmlReturn_t sim_enter_compute(const char *function, nvmlComputeInstance_t compute,
                               struct sim_target *target);
nvmlReturn_t sim_may_configure(void);
nvmlReturn_t sim_may_change(void);

/* The machine of this process's session. */
static inline struct sim_machine sim_session(void)
{
    return (struct sim_machine){.state = sim_state(), .path = sim_state_path()};
}

/* Minor numbers of capabilities, as /proc/driver/nvidia-caps/mig-minors lists them. */
static inline unsigned int sim_instance_minor(unsigned int gpu_minor, unsigned int instance)
{
    return 3 + (gpu_minor * SIM_MAX_GPU_INSTANCES + instance) * (SIM_MAX_COMPUTE_INSTANCES + 1);
}

#endif
