"""Who uses the GPUs of this node: maps the processes that NVML lists to pods and claims."""
