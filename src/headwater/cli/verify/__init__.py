"""``headwater verify``: kill everything that can be killed, and check what everybody saw."""
