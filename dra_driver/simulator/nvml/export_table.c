/*
 * The private table through which nvidia-smi reaches what NVML does not export.
 *
 * Its first word is the table's size in bytes; every other word is a function. What the entries do
 * is not documented and differs between releases, so each entry knows its own number: those that
 * were seen to set and to list the time slice do so, the others answer NOT_SUPPORTED. With
 * NVML_SIMULATOR_TRACE set, every call is written to stderr, by which the entries of another
 * release can be found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facts.h"

#define TABLE_ENTRIES 512

/* As nvidia-smi 535 calls it. */
#define SET_POLICY 192    /* (device, policy) */
#define LIST_POLICIES 193 /* (device, policies) */

enum { POLICY_TIME_SLICE = 0 };

struct policy {
    uint32_t id;
    uint32_t value;
};

struct policies {
    uint32_t count;
    struct policy policies[32];
};

typedef nvmlReturn_t (*table_entry)(void *, void *, void *, void *);

/* Faults can be injected under names of our own, because the entries have none. */
static nvmlReturn_t set_policy(nvmlDevice_t device, const struct policy *policy)
{
    struct sim_gpu *gpu = NULL;
    SIM_TRY(sim_enter_device("nvidia-smi:set-timeslice", device, &gpu));
    SIM_REQUIRE(policy != NULL && policy->id == POLICY_TIME_SLICE && policy->value <= 3);
    if (gpu->facts[FACT_MIG_CURRENT] == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    return sim_write_fact(gpu, FACT_TIME_SLICE, policy->value);
}

static nvmlReturn_t list_policies(nvmlDevice_t device, struct policies *out)
{
    struct sim_gpu *gpu = NULL;
    SIM_TRY(sim_enter_device("nvidia-smi:list-policies", device, &gpu));
    SIM_REQUIRE(out != NULL);
    if (gpu->facts[FACT_MIG_CURRENT] == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    SIM_FACT(out->policies[0].value, FACT_TIME_SLICE);
    out->policies[0].id = POLICY_TIME_SLICE;
    out->count = 1;
    return NVML_SUCCESS;
}

static nvmlReturn_t call(unsigned int number, void *a, void *b, void *c, void *d)
{
    if (getenv("NVML_SIMULATOR_TRACE") != NULL)
        fprintf(stderr, "nvml simulator: table entry %u (%p, %p, %p, %p)\n", number, a, b, c, d);
    switch (number) {
    case SET_POLICY:
        return set_policy(a, b);
    case LIST_POLICIES:
        return list_policies(a, b);
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* Functions entry_1 ... entry_511, each with its number in its body. */
#define ENTRY(n)                                                              \
    static nvmlReturn_t entry_##n(void *a, void *b, void *c, void *d)         \
    {                                                                         \
        return call(0##n, a, b, c, d);                                        \
    }
#define NAME(n) {entry_##n},
#define EIGHT(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
#define SIXTY_FOUR(X, n) \
    EIGHT(X, n##0) EIGHT(X, n##1) EIGHT(X, n##2) EIGHT(X, n##3) \
    EIGHT(X, n##4) EIGHT(X, n##5) EIGHT(X, n##6) EIGHT(X, n##7)
#define ALL(X) \
    SIXTY_FOUR(X, 0) SIXTY_FOUR(X, 1) SIXTY_FOUR(X, 2) SIXTY_FOUR(X, 3) \
    SIXTY_FOUR(X, 4) SIXTY_FOUR(X, 5) SIXTY_FOUR(X, 6) SIXTY_FOUR(X, 7)

/* The numbers are octal, digit by digit: entry_300 is number 0300, which is 192. */
ALL(ENTRY)

/* Word 0 is never called: it holds the size. */
static union {
    table_entry entry;
    size_t size;
} table[TABLE_ENTRIES] = {ALL(NAME)};

__attribute__((constructor)) static void write_table_size(void)
{
    table[0].size = sizeof table;
}

NVML_EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **out, const void *id)
{
    SIM_REQUIRE(out != NULL && id != NULL);
    if (getenv("NVML_SIMULATOR_TRACE") != NULL) {
        const unsigned char *bytes = id;
        fprintf(stderr, "nvml simulator: export table ");
        for (unsigned int i = 0; i < 16; i++)
            fprintf(stderr, "%02x", bytes[i]);
        fprintf(stderr, "\n");
    }
    *out = table;
    return NVML_SUCCESS;
}
