"""Background tasks: pings, validations, recoveries, retention, compliance."""
