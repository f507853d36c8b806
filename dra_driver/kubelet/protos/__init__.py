"""The kubelet's gRPC protocols: .proto files in our own words, and the code that hack/generate makes.

Names and field numbers are Kubernetes' (k8s.io/kubelet, pkg/apis); they are the wire format. Every
file has a name of its own, because protobuf's registry holds one file per name in a process.
"""
