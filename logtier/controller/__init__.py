"""The controller: the broker that changes cluster metadata. `state` decides, `controller` acts."""
