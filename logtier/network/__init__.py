"""The network layer of a broker: frames, order of responses, limits. The meaning of requests is injected."""
