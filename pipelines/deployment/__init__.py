"""The state folder: what was deployed, what a change does to it, who may run."""
