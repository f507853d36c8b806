"""What is on disk about claims, and which claim may use which device."""
