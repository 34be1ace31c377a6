"""Tasks: objectives of the agents, checks before a search, memory plans and kept weights."""
