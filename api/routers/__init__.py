"""Routes, one file per resource. Route functions are plain functions: FastAPI runs them in its thread pool."""
