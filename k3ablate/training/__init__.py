"""One run: its specification, its data, its loop and its record."""
