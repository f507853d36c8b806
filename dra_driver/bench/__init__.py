"""`dra-driver bench`: which sharing strategy serves which work best, measured on your own GPUs."""
