"""MIG devices: which a GPU could have, how they are made, what stands in the way."""
