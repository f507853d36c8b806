"""`dra-driver status` and `usage`: which claims and processes have the GPUs of this node."""
