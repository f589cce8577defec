"""`python -m rsi_tui` is `rsi`."""

from rsi_tui.cli import main

main()
