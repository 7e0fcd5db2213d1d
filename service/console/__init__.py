"""The console: server-rendered pages that use the same operations as the API and the command line.

`sessions` authenticates users and checks forms, `layout` contains the common parts of pages, and `routes` lists all pages
and forms. `pages` has a module for each item of the menu, which queries `storage` and fills a template.
"""
