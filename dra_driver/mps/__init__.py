"""The MPS supervisor: runs one nvidia-cuda-mps-control daemon for each MPS domain."""
