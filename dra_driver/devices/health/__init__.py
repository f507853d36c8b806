"""The health of this node's GPUs: what is wrong, since when, and what to do."""
