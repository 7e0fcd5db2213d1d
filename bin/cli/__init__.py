"""Code that commands share: settings and database, options, output, terminal."""
