/*
 * What fits where: the rules for dividing a card, computed from the state without changes.
 *
 * A GPU instance takes a run of memory slices that no other has, and its share of every engine;
 * a card has as many engines as its largest profile. So a profile may not fit although there is a
 * place: an A100 has only one media engine. A compute instance takes a run of compute slices inside
 * its GPU instance.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "mig.h"

/* Compute instance profiles by their enumeration, which also is their id. */
static const unsigned int compute_slices[CI_PROFILE_COUNT] = {1, 2, 3, 4, 7, 8, 6, 1, 0};
enum { COMPUTE_REV1 = 7 };

const struct sim_mig_profile *sim_profile_by_id(const struct sim_gpu *gpu, unsigned int id)
{
    for (unsigned int i = 0; i < gpu->mig_profile_count && i < SIM_MAX_MIG_PROFILES; i++)
        if (gpu->mig_profiles[i].id == id)
            return &gpu->mig_profiles[i];
    return NULL;
}

const struct sim_mig_profile *sim_profile_by_index(const struct sim_gpu *gpu, unsigned int index)
{
    for (unsigned int i = 0; i < gpu->mig_profile_count && i < SIM_MAX_MIG_PROFILES; i++)
        if (gpu->mig_profiles[i].index == index)
            return &gpu->mig_profiles[i];
    return NULL;
}

const struct sim_mig_profile *sim_profile_of(const struct sim_gpu *gpu, unsigned int instance)
{
    return &gpu->mig_profiles[gpu->instances[instance].profile % SIM_MAX_MIG_PROFILES];
}

static bool overlap(unsigned int start, unsigned int size, unsigned int other_start,
                    unsigned int other_size)
{
    return start < other_start + other_size && other_start < start + size;
}

static bool place_is_free(const struct sim_gpu *gpu, unsigned int start, unsigned int size)
{
    for (unsigned int id = 0; id < SIM_MAX_GPU_INSTANCES; id++) {
        const struct sim_gpu_instance *other = &gpu->instances[id];
        if (other->present && overlap(start, size, other->start, other->size))
            return false;
    }
    return true;
}

/* How many of one engine are free. */
static unsigned int free_engines(const struct sim_gpu *gpu, enum sim_engine engine)
{
    unsigned int total = 0, used = 0;
    for (unsigned int i = 0; i < gpu->mig_profile_count && i < SIM_MAX_MIG_PROFILES; i++)
        if (gpu->mig_profiles[i].engines[engine] > total)
            total = gpu->mig_profiles[i].engines[engine];
    for (unsigned int id = 0; id < SIM_MAX_GPU_INSTANCES; id++)
        if (gpu->instances[id].present)
            used += sim_profile_of(gpu, id)->engines[engine];
    return total > used ? total - used : 0;
}

static unsigned int count_of(const struct sim_gpu *gpu, const struct sim_mig_profile *profile)
{
    unsigned int count = 0;
    for (unsigned int id = 0; id < SIM_MAX_GPU_INSTANCES; id++)
        count += gpu->instances[id].present && sim_profile_of(gpu, id) == profile;
    return count;
}

static unsigned int least(unsigned int a, unsigned int b) { return a < b ? a : b; }

/* How many more instances of a profile the engines and the profile's own limit allow. */
static unsigned int allowed(const struct sim_gpu *gpu, const struct sim_mig_profile *profile)
{
    unsigned int existing = count_of(gpu, profile);
    unsigned int count = profile->instances > existing ? profile->instances - existing : 0;
    for (enum sim_engine engine = 0; engine < ENGINE_COUNT; engine++)
        if (profile->engines[engine] > 0)
            count = least(count, free_engines(gpu, engine) / profile->engines[engine]);
    return count;
}

/* How many more instances of a profile can be made now. Places of one profile do not overlap. */
unsigned int sim_remaining(const struct sim_gpu *gpu, const struct sim_mig_profile *profile)
{
    unsigned int places = 0;
    for (unsigned int start = 0; start < 32; start++)
        places += (profile->starts >> start & 1) && place_is_free(gpu, start, profile->size);
    return least(places, allowed(gpu, profile));
}

/* A wanted place that the profile does not have is an invalid argument; a taken one is not. */
nvmlReturn_t sim_find_place(const struct sim_gpu *gpu, const struct sim_mig_profile *profile,
                            const nvmlPlacement_t *wanted, unsigned int *start)
{
    if (wanted != NULL)
        SIM_REQUIRE(wanted->start < 32 && (profile->starts >> wanted->start & 1) &&
                    wanted->size == profile->size);
    if (allowed(gpu, profile) == 0)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (*start = 0; *start < 32; (*start)++)
        if ((profile->starts >> *start & 1) && (wanted == NULL || wanted->start == *start) &&
            place_is_free(gpu, *start, profile->size))
            return NVML_SUCCESS;
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

/* The id at a place, by a card that counts its upper half first, or by one that does not. */
static unsigned int id_at(const struct sim_gpu *gpu, unsigned int start, unsigned int size,
                          bool upper_first)
{
    unsigned int count = (unsigned int)gpu->facts[FACT_MIG_UNITS] / size;
    return count - 1 + (start / size + (upper_first ? count / 2 : 0)) % count;
}

/* Cards of one kind differ in this. */
static bool counts_upper_first(const struct sim_gpu *gpu)
{
    size_t length = strnlen(gpu->texts[TEXT_UUID], SIM_TEXT_SIZE);
    return length > 0 && gpu->texts[TEXT_UUID][length - 1] % 2 == 1;
}

/*
 * The id of the GPU instance at a place. The driver counts the whole card as 0, its halves as 1
 * and 2, its quarters as 3 to 6 and its eighths as 7 to 14.
 */
unsigned int sim_instance_id(const struct sim_gpu *gpu, unsigned int start, unsigned int size)
{
    return id_at(gpu, start, size, counts_upper_first(gpu));
}

/* False if a GPU instance of this profile cannot be divided like this. */
bool sim_compute_profile(const struct sim_gpu *gpu, const struct sim_mig_profile *parent,
                         unsigned int index, struct sim_compute_profile *profile)
{
    if (index >= CI_PROFILE_COUNT || compute_slices[index] == 0 ||
        (index == COMPUTE_REV1 && gpu->facts[FACT_MIG_COMPUTE_REV1] != 1))
        return false;
    unsigned int slices = compute_slices[index];
    if (slices > parent->slices || (slices < parent->slices && 2 * slices > parent->slices + 1))
        return false;
    unsigned int step = slices == 3 ? 4 : slices;
    *profile = (struct sim_compute_profile){.id = index, .index = index, .slices = slices};
    for (unsigned int start = 0; start + slices <= parent->slices; start += step) {
        profile->starts |= 1u << start;
        profile->instances++;
    }
    profile->multiprocessors = parent->engines[ENGINE_MULTIPROCESSORS] * slices / parent->slices;
    return true;
}

static bool compute_place_is_free(const struct sim_gpu_instance *instance, unsigned int start,
                                  unsigned int size)
{
    for (unsigned int id = 0; id < SIM_MAX_COMPUTE_INSTANCES; id++) {
        const struct sim_compute_instance *other = &instance->compute[id];
        if (other->present && overlap(start, size, other->start, other->size))
            return false;
    }
    return true;
}

unsigned int sim_compute_remaining(const struct sim_gpu_instance *instance,
                                   const struct sim_compute_profile *profile)
{
    unsigned int places = 0;
    for (unsigned int start = 0; start < 32; start++)
        places += (profile->starts >> start & 1) &&
                  compute_place_is_free(instance, start, profile->slices);
    return places;
}

nvmlReturn_t sim_find_compute_place(const struct sim_gpu_instance *instance,
                                    const struct sim_compute_profile *profile,
                                    const nvmlPlacement_t *wanted, unsigned int *start)
{
    if (wanted != NULL)
        SIM_REQUIRE(wanted->start < 32 && (profile->starts >> wanted->start & 1) &&
                    wanted->size == profile->slices);
    for (*start = 0; *start < 32; (*start)++)
        if ((profile->starts >> *start & 1) && (wanted == NULL || wanted->start == *start) &&
            compute_place_is_free(instance, *start, profile->slices))
            return NVML_SUCCESS;
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

/* A compute instance is named after its GPU instance, with its own slices before if fewer. */
void sim_compute_name(const struct sim_mig_profile *parent, unsigned int slices, char *name,
                      size_t size)
{
    if (slices == parent->slices)
        snprintf(name, size, "MIG %s", parent->name);
    else
        snprintf(name, size, "MIG %uc.%s", slices, parent->name);
}
