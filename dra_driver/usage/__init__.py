"""Who uses the GPUs of this node: processes that NVML names, put together with pods and claims."""
