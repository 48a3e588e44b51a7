"""The log: durable streams with dense offsets, consumer groups and topics."""
