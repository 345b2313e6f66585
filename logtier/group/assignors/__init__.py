"""Server-side assignors (KIP-848). Pure."""
