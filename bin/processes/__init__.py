"""Child processes: supervisor, embedded Redis, the local service."""
