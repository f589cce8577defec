"""Techniques of the compiler layer, one file each."""
