"""What the machine has: GPUs as NVML, /proc and /sys report them."""
