"""The sender of `import-scan`: the only part of an import that opens connections."""
