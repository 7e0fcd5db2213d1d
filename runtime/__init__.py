"""Shared by service and worker, without tables: clock, logs, metrics, tracing, Redis, DNS, wake-ups."""
