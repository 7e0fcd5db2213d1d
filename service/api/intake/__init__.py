"""What other systems send: scanners, mail servers, browser extensions, plugins, storefronts."""
