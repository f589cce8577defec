"""Techniques of the kernel layer, one file each."""
