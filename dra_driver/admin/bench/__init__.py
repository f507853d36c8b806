"""`dra-driver bench`: which sharing strategy serves which work best, measured on one's own GPUs."""
