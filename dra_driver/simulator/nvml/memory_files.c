/*
 * The kernel's files of a control group with the controller dmem: a line for each GPU, with its
 * name and a number of bytes or the word max. In a folder in place of a control group they
 * are plain files, which are rewritten; the kernel's own accept one line. The kernel does not know
 * simulated GPUs, so its own files refuse them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "memory.h"

#define FILE_SIZE 8192
#define LINE_SIZE 128

bool sim_has_dmem(int folder) { return faccessat(folder, "dmem.max", F_OK, 0) == 0; }

/* Reads a whole file with a NUL behind it; an absent one is empty. */
static void read_file(int folder, const char *file, char *text)
{
    text[0] = '\0';
    int descriptor = openat(folder, file, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return;
    ssize_t size = read(descriptor, text, FILE_SIZE - 1);
    text[size > 0 ? size : 0] = '\0';
    close(descriptor);
}

static void name_region(const char *bus_id, char *name)
{
    snprintf(name, LINE_SIZE, "nvidia/%s/vidmem ", bus_id);
}

/* The line of a GPU in a file's text, or NULL. */
static char *find_line(char *text, const char *name)
{
    for (char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, strlen(name)) == 0)
            return line;
        line = strchr(line, '\n');
        if (line != NULL)
            line++;
    }
    return NULL;
}

uint64_t sim_read_dmem(int folder, const char *file, const char *bus_id, uint64_t otherwise)
{
    char text[FILE_SIZE], name[LINE_SIZE];
    name_region(bus_id, name);
    read_file(folder, file, text);
    const char *line = find_line(text, name);
    if (line == NULL)
        return otherwise;
    line += strlen(name);
    return strncmp(line, "max", 3) == 0 ? NVML_DEVICE_MEMORY_LIMIT_MAX : strtoull(line, NULL, 10);
}

static void format_line(char *line, const char *name, uint64_t bytes)
{
    if (bytes == NVML_DEVICE_MEMORY_LIMIT_MAX)
        snprintf(line, 2 * LINE_SIZE, "%smax\n", name);
    else
        snprintf(line, 2 * LINE_SIZE, "%s%" PRIu64 "\n", name, bytes);
}

nvmlReturn_t sim_write_dmem(int folder, const char *file, const char *bus_id, uint64_t bytes)
{
    char old[FILE_SIZE], text[FILE_SIZE + 2 * LINE_SIZE] = "", name[LINE_SIZE];
    char line[2 * LINE_SIZE];
    struct statfs facts;
    name_region(bus_id, name);
    format_line(line, name, bytes);
    bool kernels = fstatfs(folder, &facts) == 0 && facts.f_type == CGROUP2_SUPER_MAGIC;
    if (!kernels) {
        read_file(folder, file, old);
        char *present = find_line(old, name);
        char *rest = present != NULL ? strchr(present, '\n') : NULL;
        if (present != NULL)
            *present = '\0';
        snprintf(text, sizeof text, "%s%s", old, rest != NULL ? rest + 1 : "");
    }
    strncat(text, line, sizeof text - strlen(text) - 1);
    int descriptor = openat(folder, file, O_WRONLY | O_CLOEXEC | (kernels ? 0 : O_TRUNC));
    if (descriptor < 0)
        return NVML_ERROR_NO_PERMISSION;
    ssize_t written = write(descriptor, text, strlen(text));
    close(descriptor);
    return written == (ssize_t)strlen(text) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
