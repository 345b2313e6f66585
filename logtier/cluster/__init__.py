"""What a broker of a cluster asks of the controller: ISRs for the partitions it leads, forwarded requests of clients.

`isr_proposals` asks for ISRs, and `forwarding` forwards requests. A single node has none of these.
"""
