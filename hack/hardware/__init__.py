"""What is tried in the first hour of a real card, so that nothing of it is lost."""
