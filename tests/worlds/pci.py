"""A PCI bus as /sys shows it, of plain files."""

from pathlib import Path

GPU_CLASS = "0x030200"
BAR = "0x0000200000000000 0x0000201fffffffff 0x000000000014220c"  # 128 GiB, 64 bits
SMALL_BAR = "0x00000000fa000000 0x00000000faffffff 0x0000000000040200"  # 16 MiB, 32 bits


class PciTree:
    """Builds it function by function. Links are as the kernel makes them, by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "kernel/iommu_groups").mkdir(parents=True)

    def add(  # noqa: PLR0913 (all that tells functions apart)
        self,
        address: str,
        *,
        driver: str | None = "vfio-pci",
        group: int | None = None,
        class_id: str = GPU_CLASS,
        vendor: str = "0x10de",
        virtual_functions: int | None = None,
        is_virtual: bool = False,
    ) -> Path:
        """Add a function, to an IOMMU group of the kernel if it is in one."""
        folder = self.root / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        facts = {
            "vendor": vendor,
            "device": "0x2330",
            "class": class_id,
            "resource": f"{SMALL_BAR}\n{BAR}\n0x0 0x0 0x0\n",
        }
        if virtual_functions is not None:
            facts["sriov_numvfs"] = str(virtual_functions)
        for name, text in facts.items():
            (folder / name).write_text(f"{text}\n")
        if is_virtual:
            (folder / "physfn").symlink_to("../0000:00:00.0")
        if group is not None:
            members = self.root / f"kernel/iommu_groups/{group}/devices"
            members.mkdir(parents=True, exist_ok=True)
            (members / address).symlink_to(folder)
            (folder / "iommu_group").symlink_to(members.parent)
        self.bind(address, driver)
        return folder

    def bind(self, address: str, driver: str | None) -> None:
        """Bind a function to a driver, or to none, as somebody on the node does."""
        link = self.root / "bus/pci/devices" / address / "driver"
        link.unlink(missing_ok=True)
        if driver is not None:
            link.symlink_to(self.root / "bus/pci/drivers" / driver)
