"""`dra-driver status`: who has the GPUs of this node, and how."""
