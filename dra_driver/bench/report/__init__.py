"""What runs have measured: figures, pages, pictures."""
