/*
 * A stand-in for nvidia-smi if NVIDIA's is not available. It does four things: list the GPUs
 * and MIG devices (-L), set the compute mode (-i GPU -c MODE), set the time-slice (compute-policy
 * -i GPU --set-timeslice=N) and show it (compute-policy -i GPU -l), and prints on stderr that it
 * is not NVIDIA's.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *device_t;
typedef int (*table_entry)(void *, void *, void *, void *);

static void *library;

/* A function of NVML; ends the program without it. */
static void *need(const char *name)
{
    void *function = dlsym(library, name);
    if (function == NULL) {
        fprintf(stderr, "nvidia-smi (stand-in): NVML has no %s\n", name);
        exit(13);
    }
    return function;
}

static void check(int code, const char *what)
{
    if (code == 0)
        return;
    const char *(*text)(int) = (const char *(*)(int))need("nvmlErrorString");
    printf("%s: %s\n", what, text(code));
    exit(code);
}

/* The MIG devices of a GPU. Their name ends with the profile's. */
static void list_mig_devices(device_t gpu)
{
    int (*most_of)(device_t, unsigned *) =
        (int (*)(device_t, unsigned *))need("nvmlDeviceGetMaxMigDeviceCount");
    int (*handle)(device_t, unsigned, device_t *) =
        (int (*)(device_t, unsigned, device_t *))need("nvmlDeviceGetMigDeviceHandleByIndex");
    int (*name_of)(device_t, char *, unsigned) =
        (int (*)(device_t, char *, unsigned))need("nvmlDeviceGetName");
    int (*uuid_of)(device_t, char *, unsigned) =
        (int (*)(device_t, char *, unsigned))need("nvmlDeviceGetUUID");
    unsigned most = 0;
    check(most_of(gpu, &most), "Unable to count the MIG devices");
    for (unsigned i = 0; i < most; i++) {
        char name[192], uuid[96];
        device_t device;
        if (handle(gpu, i, &device) != 0)
            continue; /* a hole */
        check(name_of(device, name, sizeof name), "Unable to read the name");
        check(uuid_of(device, uuid, sizeof uuid), "Unable to read the UUID");
        const char *profile = strstr(name, "MIG ");
        printf("  %-15s Device %2u: (UUID: %s)\n", profile ? profile : name, i, uuid);
    }
}

static void list_gpus(void)
{
    int (*count_of)(unsigned *) = (int (*)(unsigned *))need("nvmlDeviceGetCount_v2");
    int (*handle)(unsigned, device_t *) =
        (int (*)(unsigned, device_t *))need("nvmlDeviceGetHandleByIndex_v2");
    int (*name_of)(device_t, char *, unsigned) =
        (int (*)(device_t, char *, unsigned))need("nvmlDeviceGetName");
    int (*uuid_of)(device_t, char *, unsigned) =
        (int (*)(device_t, char *, unsigned))need("nvmlDeviceGetUUID");
    unsigned count = 0;
    check(count_of(&count), "Unable to count the GPUs");
    for (unsigned i = 0; i < count; i++) {
        char name[96], uuid[96];
        device_t device;
        check(handle(i, &device), "Unable to determine the device handle");
        check(name_of(device, name, sizeof name), "Unable to read the name");
        check(uuid_of(device, uuid, sizeof uuid), "Unable to read the UUID");
        printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
        list_mig_devices(device);
    }
}

static device_t find(const char *which)
{
    device_t device;
    if (strncmp(which, "GPU-", 4) == 0) {
        int (*by_uuid)(const char *, device_t *) =
            (int (*)(const char *, device_t *))need("nvmlDeviceGetHandleByUUID");
        check(by_uuid(which, &device), which);
    } else {
        int (*handle)(unsigned, device_t *) =
            (int (*)(unsigned, device_t *))need("nvmlDeviceGetHandleByIndex_v2");
        check(handle((unsigned)atoi(which), &device), which);
    }
    return device;
}

/* An entry of the driver's private table, by the numbers of NVIDIA's own nvidia-smi 535. */
static table_entry private_entry(unsigned number)
{
    static const unsigned char id[16];
    const void *table = NULL;
    int (*get)(const void **, const void *) =
        (int (*)(const void **, const void *))need("nvmlInternalGetExportTable");
    check(get(&table, id), "Unable to reach the driver's private table");
    return ((const table_entry *)table)[number];
}

static void set_time_slice(const char *which, const char *slice)
{
    unsigned words[2] = {0, (unsigned)atoi(slice)};
    check(private_entry(192)(find(which), words, NULL, NULL), "Failed to set timeslice policy");
    printf("Successfully set timeslice policy for GPU %s\n", which);
}

/* In NVIDIA's columns. */
static void show_time_slice(const char *which)
{
    static const char *const names[] = {"Default", "Short", "Medium", "Long"};
    unsigned found[65] = {0}; /* how many, then number and value of each */
    check(private_entry(193)(find(which), found, NULL, NULL), "Failed to get compute policies");
    printf("| GPU     Name           Value        |\n");
    printf("|   0   Timeslice       %-14s|\n", names[found[2] & 3]);
}

static void set_compute_mode(const char *which, const char *mode)
{
    int (*set)(device_t, unsigned) = (int (*)(device_t, unsigned))need("nvmlDeviceSetComputeMode");
    unsigned number = strcmp(mode, "EXCLUSIVE_PROCESS") == 0 ? 3u
                      : strcmp(mode, "PROHIBITED") == 0      ? 2u
                      : strcmp(mode, "DEFAULT") == 0         ? 0u
                                                             : (unsigned)atoi(mode);
    check(set(find(which), number), "Unable to set the compute mode");
    printf("Set compute mode for GPU %s.\n", which);
}

/* The value of --name=VALUE, of --name VALUE or of -n VALUE; NULL when absent. */
static const char *option(int count, char **words, const char *name, const char *letter)
{
    size_t size = strlen(name);
    for (int i = 1; i < count; i++) {
        if (strncmp(words[i], name, size) == 0 && words[i][size] == '=')
            return words[i] + size + 1;
        if ((strcmp(words[i], name) == 0 || strcmp(words[i], letter) == 0) && i + 1 < count)
            return words[i + 1];
    }
    return NULL;
}

int main(int count, char **words)
{
    fprintf(stderr, "nvidia-smi (stand-in of the GPU simulator, not NVIDIA's)\n");
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL) {
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n");
        return 12;
    }
    check(((int (*)(unsigned))need("nvmlInitWithFlags"))(0), "Failed to initialize NVML");
    const char *which = option(count, words, "--id", "-i");
    const char *slice = option(count, words, "--set-timeslice", "--set-timeslice");
    const char *mode = option(count, words, "--compute-mode", "-c");
    if (count > 1 && (strcmp(words[1], "-L") == 0 || strcmp(words[1], "--list-gpus") == 0))
        list_gpus();
    else if (which != NULL && slice != NULL && strcmp(words[1], "compute-policy") == 0)
        set_time_slice(which, slice);
    else if (which != NULL && strcmp(words[1], "compute-policy") == 0 &&
             strcmp(words[count - 1], "-l") == 0)
        show_time_slice(which);
    else if (which != NULL && mode != NULL)
        set_compute_mode(which, mode);
    else {
        fprintf(stderr, "knows only: -L | -i GPU -c MODE | compute-policy -i GPU "
                        "(--set-timeslice=N | -l)\n");
        return 2;
    }
    return 0;
}
