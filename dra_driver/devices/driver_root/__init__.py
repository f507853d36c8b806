"""Where the GPU driver keeps its programs and libraries."""
