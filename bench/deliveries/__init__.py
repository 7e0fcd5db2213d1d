"""Measurements of deliveries: rates, latency, backlogs, isolation of targets, and the takeover after a crash."""
