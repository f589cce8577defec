"""Techniques of the data layer, one file each."""
