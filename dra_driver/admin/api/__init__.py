"""Objects of the cluster as values: slices, nodes, what claims have, refused pods."""
