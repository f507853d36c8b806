"""What is told of claims beside the calls: status, events, health."""
