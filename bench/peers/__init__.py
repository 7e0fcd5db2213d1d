"""Celery and RQ, which deliveries are compared with: their workers do the same work as jobs."""
