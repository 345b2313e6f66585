"""Authentication and authorization: principals, access control lists, credentials."""
