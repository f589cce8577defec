"""Several processes: how they find each other, and what they wait for."""

from __future__ import annotations

from rsi_tui.evaluator.failure_rules.rule import Rule

COLLECTIVE = (
    Rule("port-taken", "collective_setup", 0, r"EADDRINUSE|[Aa]ddress already in use|failed to listen on any local network|errno: 98\b|Errno 98\b",
         "The rendezvous port is taken.", "Choose another --master-port, or end the run that still holds it."),
    Rule("duplicate-gpu", "collective_setup", 0, r"Duplicate GPU detected",
         "Two ranks use the same GPU.", "Let each local rank use its own device (LOCAL_RANK), with no more ranks than GPUs."),
    Rule("no-interface", "collective_setup", 0, r"no socket interface found|(?:interface or address|network interface|device) not found.*(?:gloo|SOCKET_IFNAME)|makeDeviceFor(?:Hostname|Interface)\(\)|Unable to find (?:address|interface) for|No interface found",
         "The network interface named for the collectives does not exist.", "Set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to one that does."),
    Rule("ranks-missing", "collective_setup", 1, r"(?i:waiting for clients|clients joined|only \d+ ?(?:of|/) ?\d+ \w+ (?:joined|registered|connected)|Rendezvous\w*Error|failed to connect to \S+.*(?:time|errno|refused)|client socket has (?:timed out|failed to connect)|connectFullMesh failed|gloo.*[Cc]onnect(?:ion)? (?:timeout|refused)|retrieving ncclUniqueId|MASTER_(?:ADDR|PORT) expected|Error initializing torch\.distributed using|unable to (?:reliably )?start one or more daemons|ssh: connect to host|Host key verification failed|initialize the HCCP process|environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)|\b(?:WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\b.{0,40}(?:not set|missing|undefined)|Name or service not known|Temporary failure in name resolution|wait timeout after \d+ms, keys(?!.*barrier)|\bconnect\(\) timed out|[Nn]ot enough slots available|unable to launch the specified application|task \d+ launch failed|aborted before step completely launched|rendezvous (?:host|endpoint|server|has failed|failed|timed out)|kex_exchange_identification|ssh_exchange|with a remote daemon|unable to complete a TCP connection|daemon has unexpectedly failed|communicating back to mpirun|can't resolve '|not a known host)",
         "The ranks did not find each other.", "Check that all ranks start, with one address and port, and that nothing blocks it."),
    Rule("coordinator", "collective_setup", 2, r"(?:Barrier timed out|Socket Timeout|DEADLINE_EXCEEDED|UNAVAILABLE: .*(?:connect|coordination))",
         "A process did not join the job's coordinator.", "Check that all processes start, with one coordinator address, and that nothing blocks it.",
         near=r"distributed\.initialize|new_process_group|init_process_group|client\.connect|Client_Connect|[Rr]egister"),
    Rule("unreachable", "collective_setup", 2, r"^(?!.*https?:).*(?:No route to host|[Nn]etwork is unreachable|Connection refused)",
         "Another host does not answer at that address and port.", "Check that it runs there, with one address and port, and that nothing blocks it."),
    Rule("no-group", "collective_setup", 1, r"ProcessGroupNCCL is only supported with GPUs|Default process group has not been initialized|trying to initialize the default process group twice|\b[Gg]roup is (?:not|already) initialized|Invalid rank \d+, rank should be|world[_ ]size .*(?:mismatch|does not match)",
         "The process group is not set up as the program expects.", "Start it with torchrun, or call init_process_group once."),
    Rule("nccl-setup", "collective_setup", 2, r"NCCL version mismatch|NCCL [Ff]ailure\b|NCCL WARN (?!.*(?:[Cc]losed|[Tt]imed? ?out|[Cc]ompletion|completed|abort|reset)).*(?:\bfail|not found|[Ii]nvalid|unable|[Cc]ould not)|nccl(?:InvalidUsage|InvalidArgument|SystemError|InternalError)|unhandled system error|NCCL WARN Bootstrap|ibv_(?!poll|post)\w+ failed|[Ff]ailed to (?:configure|initiali[sz]e|create|register) .{0,40}(?:\bnetwork|connector|channel|transport|communicator|NCCL|endpoint)|Mismatched NCCL version",
         "NCCL could not set up its communicator.", "Run with NCCL_DEBUG=WARN; check interfaces, ranks and versions."),
    Rule("barrier", "collective_timeout", 3, r"Ranks? (?P<missing_ranks>[\d, ]+) (?:failed to pass|(?:has|have) not passed) monitoredBarrier(?: in (?P<timeout_ms>\d+) ms)?",
         "Ranks {missing_ranks} never reached the barrier.", "Look at the logs of these ranks: the cause is there."),
    Rule("watchdog", "collective_timeout", 3, r"Timeout at NCCL work|either an error or timeout\) detected by watchdog|[Tt]o avoid data inconsistency|failure detected by watchdog|NCCL [Tt]imeout\b|[Cc]ollective (?:operation )?timeout|[Ss]tall limit reached|(?:waiting for|shutdown because) remainder of ranks|by (?:only a )?subset of ranks",
         "A collective waited in vain for a rank.", "Look at the rank that did not enter it: another branch, a slow loader, or a death."),
    Rule("wait-timeout", "collective_timeout", 3, r"(?i:[Tt]imed out waiting (?:for|on) (?:ranks?|peers?|workers?)\b|(?:ranks|peers) (?:have )?waited|rank \d+ (?:(?:is )?missing|never|did not)|reason for failure was: .*(?:timeout|timed out)|time(?:d out|out).{0,40} in monitoredBarrier|collective \w+ did not (?:complete|finish)|Timed out waiting (?P<timeout_ms>\d+)ms for (?:recv|send) operation|wait timeout after \d+ms, keys.*barrier|(?:all_?reduce|all_?gather|broadcast|barrier|all_?to_?all|reduce_?scatter)\b.*timed? ?out(?!\s*[=:_])|Some NCCL operations have failed or timed out|received errors while waiting for send/recv|ncclTimeout|to join the rendezvous|WorkNCCL\(.*timed out|timed out in blocking wait|wait execution of the Notify register|Remote Rank did not send|Termination timeout for|detected timeout .*collective|Socket Timeout|\bstore\b(?! =|.*TCPStore\().*[Tt]imed? ?out(?!\s*[=_)])|[Tt]imed out .{0,60}\bstore\b)",
         "A collective waited in vain for a rank.", "Look at the rank that did not enter it: another branch, a slow loader, or a death."),
    Rule("network", "collective_timeout", 3, r"NET/IBP? ?: ?Got (?:completion|async)|Got completion (?:with error|from peer)|IBV_WC_\w*ERR|ibv_(?:poll|post)\w* failed|NET/Socket.*(?:error|failed)|libfabric.*(?:error|failed)",
         "A transfer between nodes was given up: the network lost it, or the other side is gone.",
         "Look at the other side's log first; then at the link's error counters (ibstat, ethtool -S)."),
    Rule("coordination", "collective_timeout", 3, r"DEADLINE_EXCEEDED.*[Bb]arrier|Barrier timed out|[Tt]ask \S+ heartbeat timeout|set to ERROR in coordination service",
         "A task was waited for in vain by the job's coordinator.", "Look at the log of the task that is named: the cause is there."),
    Rule("heartbeat", "collective_timeout", 4, r"Heartbeat monitor timed out|watchdog got stuck|watchdog hang|(?:detected )?no heartbeat|heartbeat (?:is )?(?:missing|lost|expired)",
         "The watchdog of the collectives saw no progress.", "Look at the rank that did not enter the collective."),
)  # fmt: skip
