"""The door to NVML: nothing else imports pynvml."""
