"""Studies as files: cases of different tenants, and what is compared with what."""
