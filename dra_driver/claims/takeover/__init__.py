"""A node that NVIDIA's DRA driver has left: its checkpoint becomes records."""
