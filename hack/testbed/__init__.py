"""A node on which the driver is a process: for demos, benchmarks and tests.

It has simulated GPUs, and is in a local cluster. Without one, a test makes the kubelet's calls and
starts the small API server in `apiserver`. Everything is done by a user's means: the commands
`hack/cluster` and `dra-driver`, `kubectl`, and the Kubernetes API.
"""
