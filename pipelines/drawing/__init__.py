"""A pipeline as a picture: its graph (`model`), where things stand (`layout`), as SVG, Mermaid and DOT. Pure."""
