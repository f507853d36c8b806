/* Memory limits of control groups: how a group and those above it are found, and the rules. */
#ifndef SIMULATOR_MEMORY_H
#define SIMULATOR_MEMORY_H

#include "mig.h"

/* A control group and those above it, without the root; the folders are open (O_PATH). */
struct sim_lineage {
    unsigned int depth;
    int folders[SIM_MAX_GROUP_DEPTH];
    struct sim_group groups[SIM_MAX_GROUP_DEPTH];
};

/* memory_groups.c */
nvmlReturn_t sim_open_lineage(const struct sim_state *state, const char *path,
                              struct sim_lineage *lineage);
nvmlReturn_t sim_open_own_lineage(const struct sim_state *state, struct sim_lineage *lineage);
void sim_close_lineage(struct sim_lineage *lineage);

/* memory_rules.c */
struct sim_memory_limit *sim_nearest_limit(struct sim_state *state, unsigned int slot,
                                           const struct sim_lineage *lineage);
uint64_t sim_charged(const struct sim_state *state, const struct sim_memory_limit *limit);

#endif
