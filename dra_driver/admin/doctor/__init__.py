"""`dra-driver doctor`: what keeps pods from their GPUs, on a node and in its cluster."""
