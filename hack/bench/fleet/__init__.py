"""What a node's ResourceSlices cost a cluster of many nodes."""
