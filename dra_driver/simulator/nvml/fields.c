/*
 * Numbered fields: facts that have an id instead of a function. Each has its own return code; the
 * call itself succeeds. Units are NVML's: milliwatts, degrees, megabits per second.
 */
#define _GNU_SOURCE
#include <time.h>

#include "facts.h"

enum { VALUE_UNSIGNED = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

enum {
    FIELD_ECC_FIRST = 4,
    FIELD_ECC_LAST = 6,
    FIELD_LINK_SPEED_COMMON = 90,
    FIELD_LINK_COUNT = 91,
    FIELD_ROWS_FIRST = 142,
    FIELD_ROWS_LAST = 145,
    FIELD_LINKS_TO_SWITCHES = 147,
    FIELD_LINK_SPEED = 164,
    FIELD_LINK_STATE = 165,
    FIELD_LINK_VERSION = 166,
    FIELD_POWER_FIRST = 185,
    FIELD_POWER_LAST = 192,
    FIELD_RESET_NEEDED = 226,
    FIELD_DRAIN_AND_RESET = 227
};

enum { RECOVERY_RESET = 1, RECOVERY_DRAIN_AND_RESET = 4 };

/* Fields that answer with one fact. */
static const struct {
    unsigned int id;
    enum sim_fact fact;
} plain_fields[] = {
    {4, FACT_ECC_UNCORRECTED_VOLATILE},
    {6, FACT_ECC_UNCORRECTED},
    {31, FACT_RETIRED_PAGES}, /* pages that wait for being retired */
    {82, FACT_TEMPERATURE_MEMORY},
    {142, FACT_ROWS_CORRECTABLE},
    {143, FACT_ROWS_UNCORRECTABLE},
    {144, FACT_ROWS_PENDING},
    {145, FACT_ROWS_FAILED},
    {185, FACT_POWER_USAGE}, /* averaged */
    {186, FACT_POWER_USAGE}, /* now */
    {187, FACT_POWER_MIN},
    {188, FACT_POWER_MAX},
    {189, FACT_POWER_DEFAULT},
    {190, FACT_POWER_LIMIT}, /* in force */
    {192, FACT_POWER_LIMIT}, /* asked for */
    {230, FACT_RECOVERY_ACTION},
};

static nvmlReturn_t answer(nvmlFieldValue_t *field, unsigned int value)
{
    field->valueType = VALUE_UNSIGNED;
    field->value.uiVal = value;
    return NVML_SUCCESS;
}

/* Counters of memory errors have 64 bits, as on an H100 with R580. */
static nvmlReturn_t answer_long(nvmlFieldValue_t *field, uint64_t value)
{
    field->valueType = VALUE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    return NVML_SUCCESS;
}

/* The speed of one link by its generation. */
static unsigned int link_speed(const struct sim_link *link)
{
    static const unsigned int by_version[] = {0, 20000, 25781, 25000, 26562, 50000};
    return link->version < sizeof by_version / sizeof by_version[0] ? by_version[link->version] : 0;
}

/* Fields about all links; NOT_SUPPORTED for a card whose links lead nowhere. */
static nvmlReturn_t read_links(const struct sim_gpu *gpu, nvmlFieldValue_t *field)
{
    unsigned int links = 0, to_switches = 0;
    for (unsigned int i = 0; i < SIM_MAX_LINKS; i++) {
        links += gpu->links[i].present;
        to_switches += gpu->links[i].present && gpu->links[i].kind == LINK_TO_SWITCH;
    }
    if (links == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->fieldId) {
    case FIELD_LINK_COUNT:
        return answer(field, links);
    case FIELD_LINKS_TO_SWITCHES:
        return answer(field, to_switches);
    default:
        return answer(field, link_speed(&gpu->links[0]));
    }
}

/* Fields about one link, whose number is the field's scope. */
static nvmlReturn_t read_link(const struct sim_gpu *gpu, nvmlFieldValue_t *field)
{
    SIM_REQUIRE(field->scopeId < SIM_MAX_LINKS);
    const struct sim_link *link = &gpu->links[field->scopeId];
    if (!link->present)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->fieldId) {
    case FIELD_LINK_STATE:
        return answer(field, link->active);
    case FIELD_LINK_VERSION:
        return answer(field, link->version);
    default:
        return answer(field, link_speed(link));
    }
}

static nvmlReturn_t read_plain(const struct sim_gpu *gpu, nvmlFieldValue_t *field)
{
    for (size_t i = 0; i < sizeof plain_fields / sizeof plain_fields[0]; i++) {
        if (plain_fields[i].id != field->fieldId)
            continue;
        /* Scope 1 is the module around the GPU, which only some boards measure. */
        bool power = field->fieldId >= FIELD_POWER_FIRST && field->fieldId <= FIELD_POWER_LAST;
        bool ecc = field->fieldId >= FIELD_ECC_FIRST && field->fieldId <= FIELD_ECC_LAST;
        bool rows = field->fieldId >= FIELD_ROWS_FIRST && field->fieldId <= FIELD_ROWS_LAST;
        int64_t value = gpu->facts[plain_fields[i].fact];
        if ((power && field->scopeId != 0) || value == SIM_ABSENT)
            return NVML_ERROR_NOT_SUPPORTED;
        if ((ecc && gpu->facts[FACT_ECC_CURRENT] != 1) || (rows && sim_has_instances(gpu)))
            return NVML_ERROR_NOT_SUPPORTED;
        return ecc || rows ? answer_long(field, (uint64_t)value)
                           : answer(field, (unsigned int)value);
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t read_field(const struct sim_gpu *gpu, nvmlFieldValue_t *field)
{
    switch (field->fieldId) {
    case FIELD_LINK_SPEED_COMMON:
    case FIELD_LINK_COUNT:
    case FIELD_LINKS_TO_SWITCHES:
        return read_links(gpu, field);
    case FIELD_LINK_SPEED:
    case FIELD_LINK_STATE:
    case FIELD_LINK_VERSION:
        return read_link(gpu, field);
    case FIELD_RESET_NEEDED:
        if (gpu->facts[FACT_RECOVERY_ACTION] == SIM_ABSENT)
            return NVML_ERROR_NOT_SUPPORTED;
        return answer(field, gpu->facts[FACT_RECOVERY_ACTION] == RECOVERY_RESET);
    case FIELD_DRAIN_AND_RESET:
        if (gpu->facts[FACT_RECOVERY_ACTION] == SIM_ABSENT)
            return NVML_ERROR_NOT_SUPPORTED;
        return answer(field, gpu->facts[FACT_RECOVERY_ACTION] == RECOVERY_DRAIN_AND_RESET);
    default:
        return read_plain(gpu, field);
    }
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
                                                  nvmlFieldValue_t *values)
{
    SIM_ENTER(device);
    SIM_REQUIRE(values != NULL && count > 0);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        values[i].valueType = VALUE_UNSIGNED_LONG_LONG;
        values[i].value.ullVal = 0;
        values[i].nvmlReturn = read_field(gpu, &values[i]);
    }
    return NVML_SUCCESS;
}
