"""The parts of `headwater sql`: statements in threads of their own, results, the prompt, topics as streams."""
