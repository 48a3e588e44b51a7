"""The RESP door: Headwater's commands for clients of Redis, in any language."""
