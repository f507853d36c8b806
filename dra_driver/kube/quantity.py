"""Quantities of the Kubernetes API, for what this package's users write and compare.

The one implementation is the claim configs' own, because `api/` imports nothing of ours.
"""

from resource_nvidia_com.quantity import Format, Quantity

__all__ = ["Format", "Quantity"]
