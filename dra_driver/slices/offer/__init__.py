"""Decides what is offered of each GPU: the whole GPU, MIG devices, or shares."""
