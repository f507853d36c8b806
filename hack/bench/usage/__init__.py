"""What a look at who uses which GPU costs."""
