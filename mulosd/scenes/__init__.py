"""Procedural scenes: a small frozen world with exact labels, rendered at any resolution."""
