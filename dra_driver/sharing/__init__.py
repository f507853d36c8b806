"""The strategies by which a claim's devices are shared, and the steps that carry them out."""
