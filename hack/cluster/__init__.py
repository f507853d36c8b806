"""A real one-node Kubernetes cluster on one machine, with the standard library alone."""
