"""What is said when something else went wrong: mere consequences."""

from __future__ import annotations

from rsi_tui.evaluator.failure_rules.rule import Rule

CONSEQUENCES = (
    Rule("peer-gone", "unknown", 4, r"Connection (?:closed|reset) by (?:remote )?peer|[Bb]roken pipe|Connection reset|ncclRemoteError|remote process exited|recvValue failed|ECONNRESET|NCCL communicator was aborted|another rank|exception on one of the ranks",
         "Another process of the run went away; this one only noticed it.", "Look at the logs of the other ranks: the cause is there."),
    Rule("worker-gone", "unknown", 4, r"ChildFailedError|CalledProcessError|[Ww]orker \d+ has failed|worker died|unexpected system error|exited unexpectedly|actor (?:is dead|died)|Root Cause \(first observed|returned non-zero exit status",
         "A process of the run died; its own output is not here.", "Look at that process's log and at the kernel's (dmesg)."),
    Rule("abort", "unknown", 4, r"\bAborted\b|SIGABRT|[Ee]xit ?[Cc]ode\s*:?\s*(?:134\b|-6\b)|terminate called|Fatal Python error|[Ss]ignal:? ?\(?6\b",
         "The process aborted itself; what it printed before does not say why.", "Run it alone with faulthandler enabled."),
    Rule("other-exception", "unknown", 4, r"^(?:[A-Za-z_][\w]*\.)*(?:[A-Z]\w*(?:Error|Exception|Failure|Interrupt|Exit)|RuntimeError)\b:?",
         "The program stopped with an exception of no known kind.", "Read the traceback.", fallback=True),
)  # fmt: skip
