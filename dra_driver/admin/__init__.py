"""What people run: commands that show, explain, check and measure. Nothing on a node imports it."""
