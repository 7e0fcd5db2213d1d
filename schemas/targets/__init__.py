"""Ticket export targets: form, record, states, pings, validations."""
