"""Cluster metadata in ZooKeeper, through kazoo; no other package of the tree imports kazoo."""
