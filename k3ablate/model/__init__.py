"""The decoder and everything in it that can be swapped."""
