"""APIs of authentication, ACLs, SCRAM credentials and delegation tokens."""
