"""One `nvidia-cuda-mps-control`: how it is started, asked, probed and limited."""
