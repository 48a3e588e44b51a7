"""Benchmarks: every figure is measured and printed by the run that shows it."""
