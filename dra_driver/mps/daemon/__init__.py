"""One `nvidia-cuda-mps-control`: how it is started, queried, probed and limited."""
