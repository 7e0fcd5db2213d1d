"""Dashboard queries and the metrics snapshot."""
