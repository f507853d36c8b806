"""The adapter to NVML: nothing else imports pynvml."""
