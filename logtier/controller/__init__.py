"""The controller: the one broker that changes cluster metadata. `state` decides, `controller` acts."""
