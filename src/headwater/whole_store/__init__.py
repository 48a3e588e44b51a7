"""What both clients do without I/O to all objects of a store."""
