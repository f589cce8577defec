"""Where a step's time goes: an instrumented run that no verdict uses, and settings that are off."""
