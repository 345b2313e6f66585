"""Routes, one file a resource. Route functions are plain functions: FastAPI runs them in its thread pool."""
