"""How this node's GPUs are doing: what is wrong, since when, and what to do."""
