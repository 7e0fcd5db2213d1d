"""Measurements of deliveries: rates, latency, backlogs, fairness, and the time until another worker takes over."""
