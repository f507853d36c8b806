/*
 * What a card is: names and numbers that do not change while it is in the machine, and the modes
 * an administrator can set. Setters need a writable state file.
 */
#include <stdio.h>
#include <string.h>

#include "facts.h"

SIM_STRING(nvmlDeviceGetSerial, TEXT_SERIAL)
SIM_STRING(nvmlDeviceGetBoardPartNumber, TEXT_BOARD_PART_NUMBER)
SIM_STRING(nvmlDeviceGetVbiosVersion, TEXT_VBIOS)

SIM_NUMBER(nvmlDeviceGetMinorNumber, FACT_MINOR)
SIM_NUMBER(nvmlDeviceGetBrand, FACT_BRAND)
SIM_NUMBER(nvmlDeviceGetArchitecture, FACT_ARCHITECTURE)
SIM_NUMBER(nvmlDeviceGetModuleId, FACT_MODULE_ID)
SIM_NUMBER(nvmlDeviceGetBoardId, FACT_BOARD_ID)
SIM_NUMBER(nvmlDeviceGetMultiGpuBoard, FACT_MULTI_GPU_BOARD)
SIM_NUMBER(nvmlDeviceGetNumaNodeId, FACT_NUMA_NODE)
SIM_NUMBER(nvmlDeviceGetVirtualizationMode, FACT_VIRTUALIZATION_MODE)
SIM_NUMBER(nvmlDeviceGetPersistenceMode, FACT_PERSISTENCE_MODE)
SIM_NUMBER(nvmlDeviceGetComputeMode, FACT_COMPUTE_MODE)
SIM_NUMBER(nvmlDeviceGetNumGpuCores, FACT_CORES)
SIM_NUMBER(nvmlDeviceGetMemoryBusWidth, FACT_MEMORY_BUS_WIDTH)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major,
                                                            int *minor)
{
    SIM_ENTER(device);
    SIM_REQUIRE(major != NULL && minor != NULL);
    SIM_FACT(*major, FACT_COMPUTE_MAJOR);
    SIM_FACT(*minor, FACT_COMPUTE_MINOR);
    return NVML_SUCCESS;
}

static void fill_pci(const struct sim_gpu *gpu, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->domain = (unsigned int)gpu->facts[FACT_PCI_DOMAIN];
    pci->bus = (unsigned int)gpu->facts[FACT_PCI_BUS];
    pci->device = (unsigned int)gpu->facts[FACT_PCI_DEVICE];
    pci->pciDeviceId = (unsigned int)gpu->facts[FACT_PCI_DEVICE_ID];
    pci->pciSubSystemId = (unsigned int)gpu->facts[FACT_PCI_SUBSYSTEM_ID];
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0x1f);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff,
             pci->device & 0x1f);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    SIM_ENTER(device);
    SIM_REQUIRE(pci != NULL);
    fill_pci(gpu, pci);
    return NVML_SUCCESS;
}

/* A MIG device has as much of the window as of the memory. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    struct sim_target target;
    SIM_TRY(sim_enter_any(__func__, device, &target));
    SIM_REQUIRE(memory != NULL);
    const struct sim_gpu *gpu = target.gpu;
    SIM_FACT(memory->total, FACT_BAR1_TOTAL);
    SIM_FACT(memory->used, FACT_BAR1_USED);
    if (target.instance != NULL) {
        memory->total = memory->total / (uint64_t)gpu->facts[FACT_MIG_UNITS] * target.instance->size;
        memory->used = 0;
    }
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device,
                                                     nvmlDeviceAddressingMode_t *mode)
{
    SIM_ENTER(device);
    SIM_REQUIRE(mode != NULL);
    if (mode->version != NVML_VERSION_OF(nvmlDeviceAddressingMode_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SIM_FACT(mode->value, FACT_ADDRESSING_MODE);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current,
                                              unsigned int *pending)
{
    SIM_ENTER(device);
    SIM_REQUIRE(current != NULL && pending != NULL);
    SIM_FACT(*current, FACT_ECC_CURRENT);
    SIM_FACT(*pending, FACT_ECC_PENDING);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode)
{
    SIM_ENTER(device);
    SIM_REQUIRE(mode <= 1);
    return sim_write_fact(gpu, FACT_PERSISTENCE_MODE, mode);
}

/* 0 default, 2 prohibited, 3 exclusive process. 1, exclusive thread, ended with CUDA 8. */
NVML_EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode)
{
    SIM_ENTER(device);
    SIM_REQUIRE(mode <= 3);
    if (mode == 1 || gpu->facts[FACT_MIG_CURRENT] == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    return sim_write_fact(gpu, FACT_COMPUTE_MODE, mode);
}
