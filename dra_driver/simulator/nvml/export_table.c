/*
 * The private table through which nvidia-smi reaches what NVML does not export.
 *
 * Its first word is the table's size in bytes; every other word is a function. Which entry does
 * what is not documented and differs between releases, so each entry knows its own number: the
 * entries known here do their work, the others answer NOT_SUPPORTED. With NVML_SIMULATOR_TRACE
 * set, every call is written to stderr, which is how the entries of another release are found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simulator.h"

#define TABLE_ENTRIES 512
#define SET_TIME_SLICE 192 /* nvidia-smi 535: (device, two words: 0 and the slice) */

typedef nvmlReturn_t (*table_entry)(void *, void *, void *, void *);

static nvmlReturn_t set_time_slice(nvmlDevice_t device, const uint32_t *argument)
{
    SIM_ENTER(device);
    SIM_REQUIRE(argument != NULL);
    if (gpu->facts[FACT_MIG_CURRENT] == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    SIM_REQUIRE(argument[1] <= 3);
    return sim_write_fact(gpu, FACT_TIME_SLICE, argument[1]);
}

static nvmlReturn_t call(unsigned int number, void *a, void *b, void *c, void *d)
{
    if (getenv("NVML_SIMULATOR_TRACE") != NULL)
        fprintf(stderr, "nvml simulator: table entry %u (%p, %p, %p, %p)\n", number, a, b, c, d);
    if (number == SET_TIME_SLICE)
        return set_time_slice((nvmlDevice_t)a, b);
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Functions entry_1 ... entry_511, each with its number in its body. */
#define ENTRY(n)                                                              \
    static nvmlReturn_t entry_##n(void *a, void *b, void *c, void *d)         \
    {                                                                         \
        return call(0##n, a, b, c, d);                                        \
    }
#define NAME(n) entry_##n,
#define EIGHT(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
#define SIXTY_FOUR(X, n) \
    EIGHT(X, n##0) EIGHT(X, n##1) EIGHT(X, n##2) EIGHT(X, n##3) \
    EIGHT(X, n##4) EIGHT(X, n##5) EIGHT(X, n##6) EIGHT(X, n##7)
#define ALL(X) \
    SIXTY_FOUR(X, 0) SIXTY_FOUR(X, 1) SIXTY_FOUR(X, 2) SIXTY_FOUR(X, 3) \
    SIXTY_FOUR(X, 4) SIXTY_FOUR(X, 5) SIXTY_FOUR(X, 6) SIXTY_FOUR(X, 7)

/* The numbers are octal, digit by digit: entry_300 is number 0300, which is 192. */
ALL(ENTRY)

static const table_entry entries[TABLE_ENTRIES] = {ALL(NAME)};

/* Entry 0 is never called: its word holds the size. */
static union {
    size_t size;
    table_entry entry;
} table[TABLE_ENTRIES];

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
    for (unsigned int i = 1; i < TABLE_ENTRIES; i++)
        table[i].entry = entries[i];
    table[0].size = sizeof table;
    *out = table;
    return NVML_SUCCESS;
}
