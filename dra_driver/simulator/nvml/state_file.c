/*
 * Where the state file is, and the locks on it by which a process holds GPUs. It is beside the
 * library, among the driver's. The longest name is the versioned file itself; ldconfig may have put
 * a link .so.1 beside it, and a container may have only that.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "state.h"

#define PREFIX "libnvidia-simulator.so."

/* Appends the file's name to a folder, which has room for PATH_MAX bytes; false: it has none. */
bool sim_find_state(char *path)
{
    DIR *entries = opendir(path);
    if (entries == NULL)
        return false;
    char name[NAME_MAX + 1] = "";
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) == 0 &&
            strlen(entry->d_name) > strlen(name))
            snprintf(name, sizeof name, "%s", entry->d_name);
    closedir(entries);
    size_t used = strlen(path);
    snprintf(path + used, PATH_MAX - used, "/%s", name);
    return name[0] != '\0';
}

/* The shared lock of processes that have a GPU open, on a byte far behind the state's own. */
struct flock sim_holding(unsigned int slot, short kind)
{
    return (struct flock){.l_type = kind, .l_whence = SEEK_SET,
                          .l_start = ((off_t)1 << 40) + (off_t)slot, .l_len = 1};
}
