"""Groups of commands, each a module or a package with an ``app``."""
