"""What every other schema builds on: errors, fields, strict JSON, timestamps, principals."""
