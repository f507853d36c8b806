"""Takes over a node from NVIDIA's DRA driver: its checkpoint becomes records."""
