/*
 * Control groups, as the driver finds them: a directory, by its path in the caller's mount
 * namespace, and the directories above it.
 *
 * The root is the machine's `cgroup_root`, which may be any folder. If that is empty, or missing as
 * in a container, the root is the mount of the file system cgroup2. A container sees its own group
 * there and nothing above; only the real root has no file cgroup.events.
 *
 * NVIDIA's documentation requires cgroup v2 at /sys/fs/cgroup, and says nothing about other mounts
 * of it. So a path has to be below that, or below the machine's own root.
 *
 * A process is in the group that NVML_SIMULATOR_CGROUP names, or else /proc/self/cgroup.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "memory.h"

#define DEFAULT_MOUNT "/sys/fs/cgroup"

static bool same(const struct sim_group *one, const struct sim_group *other)
{
    return one->device == other->device && one->inode == other->inode;
}

static bool identify(int folder, struct sim_group *group)
{
    struct stat facts;
    if (fstat(folder, &facts) != 0)
        return false;
    *group = (struct sim_group){.device = facts.st_dev, .inode = facts.st_ino};
    return true;
}

static bool on_file_system(int folder, long magic)
{
    struct statfs facts;
    return fstatfs(folder, &facts) == 0 && (long)facts.f_type == magic;
}

static bool has(int folder, const char *file)
{
    return faccessat(folder, file, F_OK, 0) == 0;
}

/* The machine's own root, if it has one and this process sees it. */
static bool chosen_root(const struct sim_state *state, struct sim_group *root)
{
    struct stat facts;
    if (state->cgroup_root[0] == '\0' || stat(state->cgroup_root, &facts) != 0)
        return false;
    *root = (struct sim_group){.device = facts.st_dev, .inode = facts.st_ino};
    return true;
}

static nvmlReturn_t reason(int error)
{
    if (error == ENOENT)
        return NVML_ERROR_NOT_FOUND;
    return error == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_INVALID_ARGUMENT;
}

void sim_close_lineage(struct sim_lineage *lineage)
{
    while (lineage->depth > 0)
        close(lineage->folders[--lineage->depth]);
}

/* Adds a folder and those above it up to `root`; false when that is not above it. */
static bool climb_to(int folder, const struct sim_group *root, struct sim_lineage *lineage)
{
    struct sim_group group, last = {0, 0};
    while (folder >= 0 && identify(folder, &group) && !same(&group, &last)) {
        if (same(&group, root)) {
            close(folder);
            return true;
        }
        if (lineage->depth == SIM_MAX_GROUP_DEPTH)
            break;
        lineage->folders[lineage->depth] = folder;
        lineage->groups[lineage->depth++] = last = group;
        folder = openat(folder, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    if (folder >= 0)
        close(folder);
    return false;
}

/* The same for the file system cgroup2, up to where it begins. */
static bool climb_cgroup2(int folder, struct sim_lineage *lineage)
{
    struct sim_group last = {0, 0};
    while (folder >= 0 && on_file_system(folder, CGROUP2_SUPER_MAGIC) &&
           has(folder, "cgroup.events") && lineage->depth < SIM_MAX_GROUP_DEPTH) {
        struct sim_group group;
        if (!identify(folder, &group) || same(&group, &last))
            break;
        lineage->folders[lineage->depth] = folder;
        lineage->groups[lineage->depth++] = last = group;
        folder = openat(folder, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    bool root = folder >= 0 && on_file_system(folder, CGROUP2_SUPER_MAGIC);
    if (folder >= 0)
        close(folder);
    return (root || lineage->depth > 0) && lineage->depth < SIM_MAX_GROUP_DEPTH;
}

static bool is_below(const char *path, const char *root)
{
    size_t length = strlen(root);
    return length > 0 && strncmp(path, root, length) == 0 &&
           (path[length] == '/' || path[length] == '\0');
}

/*
 * Opens a control group and all above it. The root itself has depth 0. NOT_FOUND without the path,
 * NOT_SUPPORTED for cgroup v1, INVALID_ARGUMENT for anything but a control group.
 */
nvmlReturn_t sim_open_lineage(const struct sim_state *state, const char *path,
                              struct sim_lineage *lineage)
{
    lineage->depth = 0;
    int folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return reason(errno);
    if (!is_below(path, state->cgroup_root) && !is_below(path, DEFAULT_MOUNT)) {
        close(folder);
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    /* A file `tasks` is what only version 1 has. */
    bool version_1 = on_file_system(folder, CGROUP_SUPER_MAGIC) || has(folder, "tasks");
    if (version_1) {
        close(folder);
        return NVML_ERROR_NOT_SUPPORTED;
    }
    struct sim_group root;
    bool found = chosen_root(state, &root) ? climb_to(folder, &root, lineage)
                                           : climb_cgroup2(folder, lineage);
    if (!found)
        sim_close_lineage(lineage);
    return found ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* The path below the mount of this process's group of version 2; false when it has none. */
static bool own_place(char *place, size_t size)
{
    FILE *groups = fopen("/proc/self/cgroup", "re");
    if (groups == NULL)
        return false;
    char line[PATH_MAX];
    bool found = false;
    while (!found && fgets(line, sizeof line, groups) != NULL)
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = '\0';
            found = (size_t)snprintf(place, size, "%s", line + 3) < size;
        }
    fclose(groups);
    return found;
}

nvmlReturn_t sim_open_own_lineage(const struct sim_state *state, struct sim_lineage *lineage)
{
    const char *chosen = getenv("NVML_SIMULATOR_CGROUP");
    if (chosen != NULL && chosen[0] != '\0')
        return sim_open_lineage(state, chosen, lineage);
    struct sim_group root;
    char place[PATH_MAX], path[PATH_MAX + SIM_PATH_SIZE];
    if (!own_place(place, sizeof place))
        return NVML_ERROR_NOT_FOUND;
    snprintf(path, sizeof path, "%s%s",
             chosen_root(state, &root) ? state->cgroup_root : DEFAULT_MOUNT, place);
    return sim_open_lineage(state, path, lineage);
}
