"""JSON Schema (drafts 4 to 2020-12): documents, their references, and the compatibility of changes."""
