"""Who may do what: principals, access control lists, credentials."""
