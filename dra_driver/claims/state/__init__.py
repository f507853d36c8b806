"""What is on disk, and who has a right to what."""
