"""Child processes: supervisor, several workers, embedded Redis, the local service."""
