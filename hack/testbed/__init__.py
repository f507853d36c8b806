"""A node on which the driver is a process, as users have it: for demos, benches and tests.

It has simulated GPUs, and is in a local cluster. Without one, a test makes the kubelet's calls and
starts the small API server in `apiserver`. Everything works through the doors that a user has: the
commands `hack/cluster` and `dra-driver`, `kubectl`, and the Kubernetes API.
"""
