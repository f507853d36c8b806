"""What slices cost a cluster of many nodes."""
