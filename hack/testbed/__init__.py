"""One real node to try the driver on: local cluster, simulated GPUs, the driver as a host process.

Used by hack/demo, hack/bench and the tests, of which those without a cluster take its kubelet's
calls and its processes, and the API server of hack/apiserver. Everything in here works through the doors
that a user has: the commands `hack/cluster` and `dra-driver`, `kubectl`, and the Kubernetes API.
"""
