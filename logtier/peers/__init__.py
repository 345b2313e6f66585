"""A broker as a client of the other brokers: a connection for each purpose, a channel to the controller.

`link` is one connection, `peer` reconnects to one broker, `peers` holds all of them, and `controller_channel` retries
until the controller answers. `replica_fetch`, `controller_requests` and `leader_requests` encode the requests.
"""
