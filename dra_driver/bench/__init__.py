"""`dra-driver bench`: which sharing strategy is best for which work, measured on your own GPUs."""
