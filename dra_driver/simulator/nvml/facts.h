/*
 * Getters that hand out one stored number. A number that the card lacks is NOT_SUPPORTED.
 */
#ifndef SIMULATOR_FACTS_H
#define SIMULATOR_FACTS_H

#include "simulator.h"

/* Reads a fact through the gate into *out. */
static inline nvmlReturn_t sim_read_fact(const char *function, nvmlDevice_t device,
                                         enum sim_fact fact, unsigned int *out)
{
    struct sim_gpu *gpu = NULL;
    SIM_TRY(sim_enter_device(function, device, &gpu));
    SIM_REQUIRE(out != NULL);
    int64_t value = __atomic_load_n(&gpu->facts[fact], __ATOMIC_ACQUIRE);
    if (value == SIM_ABSENT)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned int)value;
    return NVML_SUCCESS;
}

/* Reads a fact into *out, or leaves NOT_SUPPORTED to the caller. For use behind the gate. */
#define SIM_FACT(out, fact)                        \
    do {                                           \
        if (gpu->facts[(fact)] == SIM_ABSENT)      \
            return NVML_ERROR_NOT_SUPPORTED;       \
        (out) = (__typeof__(out))gpu->facts[(fact)]; \
    } while (0)

/* A public function (device, unsigned int *) that answers with one fact. */
#define SIM_NUMBER(symbol, fact)                                                      \
    NVML_EXPORT nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *value)         \
    {                                                                                 \
        return sim_read_fact(__func__, device, (fact), value);                        \
    }

/* A public function (device, char *, length) that answers with one text. */
#define SIM_STRING(symbol, which)                                                             \
    NVML_EXPORT nvmlReturn_t symbol(nvmlDevice_t device, char *text, unsigned int length)     \
    {                                                                                         \
        SIM_ENTER(device);                                                                    \
        return sim_copy_text(gpu->texts[(which)], text, length);                              \
    }

/* Whether a GPU has GPU instances: it then does not report some facts of the whole. */
static inline bool sim_has_instances(const struct sim_gpu *gpu)
{
    for (unsigned int i = 0; i < SIM_MAX_GPU_INSTANCES; i++)
        if (__atomic_load_n(&gpu->instances[i].present, __ATOMIC_ACQUIRE))
            return true;
    return false;
}

#endif
