"""`dra-driver validate`: what is wrong with manifests."""
