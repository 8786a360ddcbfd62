"""Numbers as tables and text."""
