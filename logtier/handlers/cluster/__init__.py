"""APIs of the cluster: versions, features, brokers, the quorum of controllers."""
