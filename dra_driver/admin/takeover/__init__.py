"""Takes a node over from NVIDIA's DRA driver: its checkpoint becomes records."""
