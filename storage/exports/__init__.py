"""Ticket exports: transitions, attempts, recoveries, worker heartbeats, idempotency keys."""
