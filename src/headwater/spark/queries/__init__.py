"""Streaming queries that read or write a store, as the store knows them; needs no Spark."""
