"""The base of all other schemas: errors, fields, strict JSON, timestamps, principals."""
