"""`dra-driver convert`: objects of older APIs in the form of this driver and today's clusters."""
