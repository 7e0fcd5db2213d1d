"""What the service and the worker both need and no table holds: clock, logs, metrics, tracing, Redis, DNS, wake-ups."""
