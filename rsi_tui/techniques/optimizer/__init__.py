"""Techniques of the optimizer layer, one file each."""
