"""Resources for other systems: scanners, mail servers, browser extensions, plugins, storefronts."""
