"""Facts about a node, a cluster, and what an install ships."""
