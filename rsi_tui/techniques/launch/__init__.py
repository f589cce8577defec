"""Techniques of the launch layer, one file each."""
