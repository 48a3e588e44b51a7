"""Work queues: each message to one consumer, with delays, deadlines, retries and dead letters."""
