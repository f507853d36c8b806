"""A node that NVIDIA's driver has left: its checkpoint becomes records."""
