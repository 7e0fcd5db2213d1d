"""Ticket exports: forms, records, state machine, tickets, attempts, recoveries."""
