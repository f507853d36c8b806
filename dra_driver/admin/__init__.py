"""What people run: commands that look, explain, check and measure. Nothing on a node imports it."""
