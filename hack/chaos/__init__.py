"""A seeded campaign of pods and faults on a real local cluster; see docs/chaos.md."""
