"""What failed runs print, as data: one rule a kind of message, each with its class, its sentence and its advice.

A rule is a regular expression over one line of output, cleaned of escapes and of prefixes (ranks,
timestamps, log levels). Named groups become facts; groups that end in `_bytes` are sizes with their
unit. `tier` orders causes before consequences: the lowest tier that matches anywhere wins, within it
the earliest line, within a line the order of RULES. The sentences may use the rule's own groups in
braces.

    0  the physical cause, named with its figures
    1  an exact exception: says what is wrong and where
    2  a general exception
    3  a symptom: somebody waited, or was ended from outside
    4  a mere consequence of another process's end

What is said in a warning is no more than a symptom, whatever its rule: programs go on after warnings.
"""

from rsi_tui.evaluator.failure_rules.collective import COLLECTIVE
from rsi_tui.evaluator.failure_rules.consequences import CONSEQUENCES
from rsi_tui.evaluator.failure_rules.machine import MACHINE
from rsi_tui.evaluator.failure_rules.memory import MEMORY
from rsi_tui.evaluator.failure_rules.numerics import NUMBERS
from rsi_tui.evaluator.failure_rules.program import CODE, OWN
from rsi_tui.evaluator.failure_rules.rule import CAUSES, OUTCOMES, Rule
from rsi_tui.evaluator.failure_rules.told import RECORDED, TOLD

__all__ = ["CAUSES", "OUTCOMES", "RULES", "TIERS", "Rule"]

RULES: tuple[Rule, ...] = (*MEMORY, *MACHINE, *COLLECTIVE, *NUMBERS, *CODE, *TOLD, *OWN, *CONSEQUENCES, *RECORDED)
"""all rules, in the order in which one line is read"""

TIERS = ("physical cause", "exact exception", "general exception", "symptom", "consequence")
"""what each tier is called"""
