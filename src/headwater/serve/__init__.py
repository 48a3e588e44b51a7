"""Servers: tokens, listening, processes and HTTP, which they share; and what each one serves."""
