"""Why a claim or a pod does not fit: what the scheduler finds, and what to change."""
