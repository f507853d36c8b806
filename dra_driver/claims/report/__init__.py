"""Reports on claims, beside the kubelet's calls: status, events, health."""
