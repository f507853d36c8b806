"""What is there: of a node, of a cluster, of what an install ships."""
