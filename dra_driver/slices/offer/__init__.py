"""What is offered of each GPU: whole, MIG devices, shares."""
