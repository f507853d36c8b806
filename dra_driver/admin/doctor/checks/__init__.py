"""What facts mean: each a pure function to findings."""
