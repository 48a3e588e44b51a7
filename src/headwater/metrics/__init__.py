"""Metrics of a store and of a process, as Prometheus reads them."""
