"""The console: pages for persons, made by the server, over the same verbs as the API and the commands.

`entrance` says who comes in and which forms count, `frame` what every page has. Beyond these there is a module for each noun
of the menu, which asks `storage` and fills one template.
"""
