"""What every layer may use."""
