"""How much error probability a campaign and each of its verifications may spend (MEASUREMENT, section 4).

The k-th campaign or evaluation on a workload gets total * 6 / (pi^2 k^2), which sums to `total` over
the workload's whole life. A campaign splits its share evenly over its planned verifications; a proven
candidate hands its share to the next (fallback procedure: Wiens and Dmitrienko, J. Biopharm. Stat. 2005).
The probability that anything false is ever adopted on a workload is then at most `total`.

Nothing is stored here: the journal holds (alpha, proven) of each verification, and `replay` restores
the ledger from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rsi_tui.errors import GateError, JournalError

LIFE = 0.01
"""family-wise error over the life of a workload"""


def campaign_alpha(ordinal: int, total: float = LIFE) -> float:
    """Error probability of the `ordinal`-th (from 1) campaign or evaluation on a workload."""
    if ordinal < 1:
        raise ValueError(f"campaigns are counted from 1, not {ordinal}.")
    return total * 6 / (math.pi**2 * ordinal**2)


class AlphaLedger:
    """The share of each verification of one campaign, in the order in which they are run."""

    def __init__(self, alpha: float, planned: int) -> None:
        """`alpha` for the whole campaign, split over `planned` verifications."""
        if not 0 < alpha < 1 or planned < 1:
            raise ValueError(f"a ledger needs alpha in (0, 1) and at least one verification, not {alpha} and {planned}.")
        self.alpha = alpha
        self.planned = planned
        self.settled: list[tuple[float, bool]] = []
        """(alpha spent, proven) of each verification so far"""
        self._handed_on = 0.0

    @classmethod
    def replay(cls, alpha: float, planned: int, settled: Iterable[tuple[float, bool]]) -> AlphaLedger:
        """The ledger after these verifications; JournalError when the record spent what it had not."""
        ledger = cls(alpha, planned)
        for number, (spent, proven) in enumerate(settled, 1):
            share = ledger._share
            if not math.isclose(spent, share, rel_tol=1e-9):
                raise JournalError(
                    f"verification {number} is recorded with alpha {spent:.3g}, the ledger gives it {share:.3g}: "
                    "the record was changed or comes from another version of rsi; don't continue this campaign."
                )
            ledger.settle(proven)
        return ledger

    @property
    def left(self) -> int:
        """Verifications that can still be run; one more than planned when the last one was proven."""
        planned = self.planned - len(self.settled)
        return planned if planned > 0 else int(self._handed_on > 0)

    def next_alpha(self) -> float:
        """Share of the next verification; GateError when all are used. Spends nothing."""
        if not self.left:
            raise GateError(
                f"all {self.planned} verifications of this campaign are used: start another campaign, "
                "or raise max_verifications under [proof]."
            )
        return self._share

    def settle(self, proven: bool) -> None:
        """Close the verification that `next_alpha` was given to: its share is spent, or handed on when proven."""
        share = self.next_alpha()
        self.settled.append((share, proven))
        self._handed_on = share if proven else 0.0

    @property
    def _share(self) -> float:
        own = self.alpha / self.planned if len(self.settled) < self.planned else 0.0
        return own + self._handed_on
