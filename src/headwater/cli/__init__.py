"""The ``headwater`` command, one file per group of commands."""
