"""Agents: their objective, checks before a search, memory plans and weight retention."""
