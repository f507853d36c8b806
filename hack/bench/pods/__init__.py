"""How long a pod takes to start and to go, with a claim and without."""
