"""REST administration of topics.

The package sees brokers as a client does (`confluent_kafka`), never as a part of the log tier. `topic_admin` is the one
home of topic administration; the command line uses it too.
"""
