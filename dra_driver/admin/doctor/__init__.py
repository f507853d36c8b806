"""`dra-driver doctor`: what on a node, and in its cluster, stands in the way of GPUs for pods."""
