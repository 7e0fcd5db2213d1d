"""Memory: the only room that knows the database; it also keeps what both doors share (clock, logs, wake-ups, names)."""
