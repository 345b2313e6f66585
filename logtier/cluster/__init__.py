"""What a broker of a cluster has, and a single node has not.

Its membership, the connections to the other brokers, the ISRs that it asks of the controller, and the requests of
clients that it forwards there.
"""
