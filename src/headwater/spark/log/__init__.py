"""``format("headwater")``: streams and topics as a source and a sink, batch and streaming."""
