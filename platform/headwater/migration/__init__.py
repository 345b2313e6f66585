"""Makes the data folder of one node that of a cluster, and back."""
