"""The MPS supervisor: one nvidia-cuda-mps-control per MPS domain, kept alive on its own."""
