"""Use cases, one module per noun; the API, the console and the command line call them."""
