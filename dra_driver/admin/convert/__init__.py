"""`dra-driver convert`: objects of older APIs as this driver and today's clusters take them."""
