"""Reading streams and topics into Spark: offset ranges over tasks, nodes handed on as Arrow."""
