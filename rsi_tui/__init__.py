"""rsi: makes training programs faster without changing what they learn, and proves it."""

__version__ = "0.1.0"
