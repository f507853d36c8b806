"""What to try in the first hour with a real card."""
