"""`dra-driver inspect`: what a node has, and what the driver would publish and inject."""
