"""The sender of `import-scan`."""
