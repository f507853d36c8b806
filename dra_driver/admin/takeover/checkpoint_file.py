"""The name of the checkpoint of NVIDIA's DRA driver, in the directory that both drivers share.

Apart from what reads it, as most nodes have none.
"""

FILE = "checkpoint.json"
