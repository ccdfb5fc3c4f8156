"""Evaluators: chunk of staged rows -> mergeable state -> metrics."""
