"""Techniques of the communication layer, one file each."""
