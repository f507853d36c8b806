/*
 * How cards are joined: NVLink, the fabric of an NVSwitch system, C2C, and the PCIe tree with the
 * CPUs and memory near each card.
 */
#include <string.h>

#include "facts.h"

enum { TOPOLOGY_SINGLE = 10, TOPOLOGY_HOSTBRIDGE = 30, TOPOLOGY_NODE = 40, TOPOLOGY_SYSTEM = 50 };
enum { P2P_OK = 0, P2P_NVLINK = 2, P2P_NOT_SUPPORTED = 5 };

/* The link of that number, INVALID_ARGUMENT beyond the last possible, NOT_SUPPORTED if absent. */
static nvmlReturn_t find_link(struct sim_gpu *gpu, unsigned int number, struct sim_link **link)
{
    SIM_REQUIRE(number < SIM_MAX_LINKS);
    *link = &gpu->links[number];
    return (*link)->present ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int number,
                                                  unsigned int *active)
{
    struct sim_link *link;
    SIM_ENTER(device);
    SIM_REQUIRE(active != NULL);
    SIM_TRY(find_link(gpu, number, &link));
    *active = link->active;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int number,
                                                    unsigned int *version)
{
    struct sim_link *link;
    SIM_ENTER(device);
    SIM_REQUIRE(version != NULL);
    SIM_TRY(find_link(gpu, number, &link));
    *version = link->version;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device,
                                                             unsigned int number,
                                                             unsigned int *kind)
{
    struct sim_link *link;
    SIM_ENTER(device);
    SIM_REQUIRE(kind != NULL);
    SIM_TRY(find_link(gpu, number, &link));
    *kind = link->kind;
    return NVML_SUCCESS;
}

/* Peer access over every link: capability 0 is P2P, 1 access to system memory, 2 P2P atomics. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int number,
                                                       unsigned int capability, unsigned int *can)
{
    struct sim_link *link;
    SIM_ENTER(device);
    SIM_REQUIRE(can != NULL && capability <= 5);
    SIM_TRY(find_link(gpu, number, &link));
    *can = capability <= 2;
    return NVML_SUCCESS;
}

/* The PCI numbers behind "DDDDDDDD:BB:DD.F". */
static void read_bus_id(const char *text, nvmlPciInfo_t *pci)
{
    unsigned int numbers[3] = {0, 0, 0};
    unsigned int which = 0;
    for (; *text != '\0' && *text != '.' && which < 3; text++) {
        unsigned int digit;
        if (*text == ':') {
            which++;
            continue;
        }
        digit = (unsigned int)(*text <= '9' ? *text - '0' : (*text | 0x20) - 'a' + 10);
        numbers[which] = numbers[which] << 4 | (digit & 0xf);
    }
    pci->domain = numbers[0];
    pci->bus = numbers[1];
    pci->device = numbers[2];
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device,
                                                             unsigned int number,
                                                             nvmlPciInfo_t *pci)
{
    struct sim_link *link;
    SIM_ENTER(device);
    SIM_REQUIRE(pci != NULL);
    SIM_TRY(find_link(gpu, number, &link));
    if (link->remote_bus_id[0] == '\0')
        return NVML_ERROR_NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    memcpy(pci->busId, link->remote_bus_id, sizeof link->remote_bus_id);
    read_bus_id(link->remote_bus_id, pci);
    pci->pciDeviceId = link->remote_device_id;
    if (strlen(link->remote_bus_id) > 4) /* the legacy form drops four digits of the domain */
        memcpy(pci->busIdLegacy, link->remote_bus_id + 4, 13);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *mode)
{
    SIM_ENTER(device);
    SIM_REQUIRE(mode != NULL);
    SIM_FACT(mode->isC2cEnabled, FACT_C2C_MODE);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    SIM_ENTER(device);
    SIM_REQUIRE(info != NULL);
    SIM_FACT(info->state, FACT_FABRIC_STATE);
    SIM_FACT(info->status, FACT_FABRIC_STATUS);
    SIM_FACT(info->cliqueId, FACT_FABRIC_CLIQUE);
    memcpy(info->clusterUuid, gpu->fabric_cluster, sizeof info->clusterUuid);
    return NVML_SUCCESS;
}

/* Versions 2 and 3 of the structure; 3 adds one byte that sums up the health mask. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, void *argument)
{
    SIM_ENTER(device);
    SIM_REQUIRE(argument != NULL);
    nvmlGpuFabricInfo_v3_t *info = argument;
    bool third = info->version == NVML_VERSION_OF(nvmlGpuFabricInfo_v3_t, 3);
    if (!third && info->version != NVML_VERSION_OF(nvmlGpuFabricInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SIM_FACT(info->state, FACT_FABRIC_STATE);
    SIM_FACT(info->status, FACT_FABRIC_STATUS);
    SIM_FACT(info->cliqueId, FACT_FABRIC_CLIQUE);
    SIM_FACT(info->healthMask, FACT_FABRIC_HEALTH);
    memcpy(info->clusterUuid, gpu->fabric_cluster, sizeof info->clusterUuid);
    if (third)
        info->healthSummary = 1; /* healthy */
    return NVML_SUCCESS;
}

/* How close two GPUs are in the PCIe tree, in NVML's levels. */
static int common_ancestor(const struct sim_gpu *one, const struct sim_gpu *other)
{
    if (one->facts[FACT_PCIE_SWITCH] != SIM_ABSENT &&
        one->facts[FACT_PCIE_SWITCH] == other->facts[FACT_PCIE_SWITCH])
        return TOPOLOGY_SINGLE;
    if (one->facts[FACT_PCIE_ROOT] == other->facts[FACT_PCIE_ROOT])
        return TOPOLOGY_HOSTBRIDGE;
    if (one->facts[FACT_HOST_NUMA_NODE] == other->facts[FACT_HOST_NUMA_NODE])
        return TOPOLOGY_NODE;
    return TOPOLOGY_SYSTEM;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device,
                                                             nvmlDevice_t other, int *level)
{
    struct sim_gpu *second = NULL;
    SIM_ENTER(device);
    SIM_TRY(sim_enter_device(__func__, other, &second));
    SIM_REQUIRE(level != NULL && device != other);
    *level = common_ancestor(gpu, second);
    return NVML_SUCCESS;
}

/* Whether a card has an active link to a switch, or, with a bus id, to the device there. */
static bool leads(const struct sim_gpu *gpu, const char *bus_id)
{
    for (unsigned int number = 0; number < SIM_MAX_LINKS; number++) {
        const struct sim_link *link = &gpu->links[number];
        if (link->active && (bus_id == NULL ? link->kind == LINK_TO_SWITCH
                                            : strcmp(link->remote_bus_id, bus_id) == 0))
            return true;
    }
    return false;
}

/* Whether NVLink joins two cards: directly, or through switches. */
static bool joined(const struct sim_gpu *one, const struct sim_gpu *other)
{
    return leads(one, other->texts[TEXT_PCI_BUS_ID]) || (leads(one, NULL) && leads(other, NULL));
}

/* Whether two cards reach each other: over NVLink if it joins them, else within one NUMA node. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other,
                                                unsigned int capability, unsigned int *status)
{
    struct sim_gpu *second = NULL;
    SIM_ENTER(device);
    SIM_TRY(sim_enter_device(__func__, other, &second));
    SIM_REQUIRE(status != NULL && capability <= 4);
    bool linked = joined(gpu, second);
    bool near = common_ancestor(gpu, second) <= TOPOLOGY_NODE;
    *status = (capability == P2P_NVLINK ? linked : linked || near) ? P2P_OK : P2P_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* Sets the bits of a card's CPUs in an array of words. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words,
                                                  unsigned long *set)
{
    SIM_ENTER(device);
    SIM_REQUIRE(set != NULL && words > 0);
    int64_t first, count;
    SIM_FACT(first, FACT_CPU_FIRST);
    SIM_FACT(count, FACT_CPU_COUNT);
    const unsigned int bits = 8 * sizeof *set;
    memset(set, 0, words * sizeof *set);
    for (int64_t cpu = first; cpu < first + count && cpu < (int64_t)words * bits; cpu++)
        set[cpu / bits] |= 1UL << (cpu % bits);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words,
                                                     unsigned long *set, unsigned int scope)
{
    SIM_ENTER(device);
    SIM_REQUIRE(set != NULL && words > 0 && scope <= 1);
    int64_t node;
    SIM_FACT(node, FACT_HOST_NUMA_NODE);
    const unsigned int bits = 8 * sizeof *set;
    memset(set, 0, words * sizeof *set);
    if (node >= 0 && node < (int64_t)words * bits)
        set[node / bits] |= 1UL << (node % bits);
    return NVML_SUCCESS;
}
