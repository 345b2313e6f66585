"""REST administration of topics.

The package is a client of the brokers (`confluent_kafka`), never a part of the log tier. `topic_admin` is the single
home of topic administration; the command line shares that module.
"""
