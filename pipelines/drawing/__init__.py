"""Drawing of a pipeline: its graph (`model`) and layout (`layout`), as SVG, Mermaid and DOT. Pure."""
