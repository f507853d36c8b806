"""What the cluster offers of this driver's devices, what is used, and what is free."""
