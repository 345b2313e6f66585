"""The state folder: deployed stages, the effects of changes, the run lock."""
