"""Builds the OpenAPI document from the resources and from a description of each operation."""
