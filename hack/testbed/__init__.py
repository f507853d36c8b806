"""One real node to try the driver on: local cluster, simulated GPUs, the driver as a host process.

Used by hack/demo, hack/bench and the tests; those without a cluster take the calls of a kubelet and
the processes from here, and the API server of hack/apiserver. Everything works through the doors
that a user has: the commands `hack/cluster` and `dra-driver`, `kubectl`, and the Kubernetes API.
"""
