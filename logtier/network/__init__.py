"""The way in and out of a broker: frames, the order of responses, limits. What a request means is injected."""
