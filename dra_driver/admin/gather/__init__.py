"""What a node is, in one archive: for issues, and for the simulator to play."""
