"""How much error probability a campaign and each of its verifications may spend (MEASUREMENT, section 4).

The k-th campaign or evaluation on a workload gets total * 6 / (pi^2 k^2), which sums to `total` over
the workload's whole life. A campaign splits its share evenly over its planned verifications; a proven
candidate hands its share to the next (fallback procedure: Wiens and Dmitrienko, J. Biopharm. Stat. 2005).
The probability that anything false is ever adopted on a workload is then at most `total`.

Revocation. A proof may be taken back later: a person vetoes the change, an exploit is found in it, a canary
among the adopted shows that nothing can be trusted. Its share counts as spent from then on, and what it handed on
is gone, so each later verification is judged again with the share it has without that: proven still when its
e-value at its highest reaches 1/share, reopened (no longer proven) when it does not or was not kept. What a
reopened one handed on is gone too, and so on down the line. Nothing is measured again for it: an e-process that
has been at 1/share has been there whatever share it was run with. The shares after a revocation are those that
the procedure would have given had the revoked one never been proven, and revoking never proves anything, so the
family-wise error stays at most `alpha`. A reopened candidate may be verified again, with a share that is left.

Nothing is stored here: the journal holds alpha, verdict and e-value of each verification and every revocation, and
`replay` restores the ledger from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rsi_tui.errors import GateError, JournalError

LIFE = 0.01
"""family-wise error over the life of a workload"""

Entry = tuple[float, bool] | tuple[float, bool, float | None] | int
"""of a record: (alpha, proven[, e-value]) of a verification, or the number of one that was revoked then"""


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
        """(share, proven) of each verification so far, as they stand after revocations"""
        self._evalues: list[float | None] = []
        self._handed_on = 0.0

    @classmethod
    def replay(cls, alpha: float, planned: int, record: Iterable[Entry]) -> AlphaLedger:
        """The ledger after these verifications and revocations; JournalError when the record spent what it had not."""
        ledger = cls(alpha, planned)
        for entry in record:
            if isinstance(entry, int):
                ledger.revoke(entry)
                continue
            spent, proven, *evalue = entry
            share = ledger._share
            if not math.isclose(spent, share, rel_tol=1e-9):
                raise JournalError(
                    f"verification {len(ledger.settled) + 1} is recorded with alpha {spent:.3g}, the ledger gives it "
                    f"{share:.3g}: the record was changed or comes from another version of rsi; "
                    "don't continue this campaign."
                )
            ledger.settle(proven, *evalue)
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

    def settle(self, proven: bool, evalue: float | None = None) -> None:
        """Close the verification that `next_alpha` was given to: its share is spent, or handed on when proven.

        `evalue` is its e-process at its highest. Without it nothing of it is left once its share shrinks.
        """
        share = self.next_alpha()
        self.settled.append((share, proven))
        self._evalues.append(evalue)
        self._handed_on = share if proven else 0.0

    def revoke(self, number: int) -> tuple[int, ...]:
        """Take back the proof of verification `number` (from 1): the numbers of those that are reopened with it.

        One that is not proven, or not any more, has handed nothing on: nothing changes. Raises ValueError when there
        was no such verification.
        """
        if not 1 <= number <= len(self.settled):
            raise ValueError(f"there are verifications 1 to {len(self.settled)}, not {number}: none is revoked.")
        before, self.settled, self._handed_on = self.settled, [], 0.0
        reopened = []
        for place, (had, was_proven) in enumerate(before, 1):
            share = self._share
            stands = was_proven and (math.isclose(share, had) or self._reached(place, share))
            if was_proven and not stands and place != number:
                reopened.append(place)
            proven = stands and place != number
            self.settled.append((share, proven))
            self._handed_on = share if proven else 0.0
        return tuple(reopened)

    def _reached(self, place: int, share: float) -> bool:
        evalue = self._evalues[place - 1]
        return evalue is not None and evalue * share >= 1

    @property
    def _share(self) -> float:
        own = self.alpha / self.planned if len(self.settled) < self.planned else 0.0
        return own + self._handed_on
