"""Reports on claims beside the kubelet's calls: claim status, events and health."""
