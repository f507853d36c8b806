"""Objects of the cluster as values: slices, nodes, allocations, refused pods."""
