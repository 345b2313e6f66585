"""The local socket between the REST API and the SQL service: frames, the client, the server's connections."""
