"""GPUs on the PCI bus: which can be given to virtual machines, and the switch of their drivers."""
