"""SQL databases, for every part that uses one: outbox, table source, SQL sink and jobs of Spark.

Engines from URLs, names of databases without their secrets, what the errors of drivers mean, tables
that several processes may create at once, and quoted names. It knows no data type of the log.
"""
