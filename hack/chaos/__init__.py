"""A seeded campaign of pods and troubles on a real local cluster; see docs/chaos.md."""
