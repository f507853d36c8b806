"""A node on which the driver runs as a process, for demos, benchmarks and tests.

It has simulated GPUs, and is in a local cluster. Without one, a test makes the kubelet's calls and
starts the small API server in `apiserver`. Everything uses a user's means: the commands
`hack/cluster` and `dra-driver`, `kubectl`, and the Kubernetes API.
"""
