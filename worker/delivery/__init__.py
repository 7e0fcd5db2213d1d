"""Delivery: dispatcher, claim planner, target queues, attempt, outcomes, throttle."""
