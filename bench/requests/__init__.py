"""Measurements of requests to the service: rates, and response times while there are slow or hostile clients."""
