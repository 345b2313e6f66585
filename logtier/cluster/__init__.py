"""What a broker of a cluster has, and a single node has not.

Its membership and its connections to the other brokers; what it asks of the controller: `isr_proposals` for the ISRs
that leaders propose, `remote_changes` for topics and producer ids, `controlled_shutdown` for other leaders;
`forwarding` of requests of clients; and what it asks of leaders: `group_ends` for the lag of groups.
"""
