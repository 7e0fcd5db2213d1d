"""Inbound HTTP: the API, the console and the OpenAPI description, built with Falcon. It never imports the worker."""
