"""What the cluster offers of this driver's devices, what of it is used, and what is free."""
