"""Techniques of the memory layer, one file each."""
