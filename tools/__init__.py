"""Generators of files in the repository, and of the bill of materials. Nothing that runs needs them."""
