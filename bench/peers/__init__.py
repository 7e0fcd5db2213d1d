"""Celery and RQ for comparison: their workers deliver the same exports as jobs."""
