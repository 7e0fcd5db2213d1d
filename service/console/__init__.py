"""The console: server-rendered pages that use the same operations as the API and the command line.

`sessions` authenticates users and checks forms, `layout` has the common parts of pages, `routes` lists all of them. `pages`
has a module for each item of the menu, which queries `storage` and fills a template.
"""
