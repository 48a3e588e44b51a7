"""Applications: a registry of workers, consumers and other parts, and what runs them together."""
