"""What every layer may use: inputs, headers, codecs, failures, instruments, profiles."""
