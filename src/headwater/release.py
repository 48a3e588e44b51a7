"""Which release this is: the version of the package, which every release raises.

In the tree it is that of the release to come.
"""

__version__ = "0.1.0"
