"""The machine, its disk and its scheduler: what is no fault of the program."""

from __future__ import annotations

from rsi_tui.evaluator.failure_rules.rule import Rule

MACHINE = (
    Rule("evicted-memory", "host_oom_killed", 0, r"\bEvicted\b|[Pp]od .* evicted",
         "The node evicted the pod because its memory was used up.", "Ask for more memory in the pod's request and limit, or use less.",
         near=r"low on resource: memory|MemoryPressure|memory limit"),
    Rule("evicted-disk", "disk_full", 0, r"\bEvicted\b|[Pp]od .* evicted",
         "The node evicted the pod because its local disk was used up.", "Write to a volume, or ask for more ephemeral storage.",
         near=r"low on resource: (?:ephemeral-storage|nodefs|imagefs)|DiskPressure|ephemeral[- ]storage"),
    Rule("file-limit", "disk_full", 0, r"File too large|\[Errno 27\]|\bEFBIG\b",
         "A file grew beyond what a trial may write.", "Write smaller files, and fewer of them.", outcome="crashed"),
    Rule("disk-full", "disk_full", 0, r"No space left on device|\[Errno (?:28|122)\]|Disk quota exceeded|\bENOSPC\b|\bEDQUOT\b|disk is full|exceeds? (?:the )?ephemeral[- ]storage|low on resource: ephemeral-storage|[Nn]ot enough (?:free )?(?:disk )?space|\bos error (?:28|122)\b",
         "A file could not be written: disk or quota is full.", "Make room, or write fewer and smaller checkpoints."),
    Rule("disk-write", "disk_full", 0, r"write\(\): fd \d+ failed with|PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos",
         "A checkpoint could not be written to the end; the disk is full or failing.", "Make room, and look at the disk's health."),
    Rule("device-ecc", "device_fault", 0, r"uncorrectable (?:ECC|NVLink)|ECC error|cudaErrorECC|NVRM: Xid|\bXid\b.*\b\d+,|fallen off the bus|GPU is lost|GPU [Hh]ang|HW Exception by GPU|hardware (?:stack )?error|row remap",
         "The GPU or its memory is faulty.", "Run again on another device and have this one checked."),
    Rule("device-busy", "device_fault", 0, r"device\(?s?\)? (?:is/are )?busy or unavailable|all CUDA-capable devices are busy|cudaErrorDevicesUnavailable",
         "The GPU is held by another process or not available.", "End the process that holds it, or choose another device."),
    Rule("device-driver", "device_fault", 0, r"Driver/library version mismatch|Unable to determine the device handle|CUDA driver initialization failed|CUDA unknown error|system not yet initialized|Failed to initialize NVML|[Ff]abric ?[Mm]anager.*(?:not running|fail)|No CUDA GPUs are available|no CUDA-capable device is detected|nvidia-smi has failed",
         "The driver does not give access to a GPU.", "Check nvidia-smi on that node, and CUDA_VISIBLE_DEVICES."),
    Rule("device-access", "device_fault", 1, r"illegal memory access|illegal instruction was encountered|misaligned address|unspecified launch failure|(?:CUBLAS|CUDNN)_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR|INTERNAL_ERROR)|Memory access fault by GPU|HSA_STATUS_ERROR|CUDA error: (?:unknown error|launch timed out)",
         "A GPU kernel failed; often a fault of the kernel, sometimes of the device.",
         "Run once more with CUDA_LAUNCH_BLOCKING=1 to see which kernel; then on another device.", outcome="crashed"),
    Rule("denied", "permission", 1, r"PermissionError|[Pp]ermission denied|[Ii]nvalid user token|Invalid credentials|(?:model|repo|dataset)\S* .*is restricted|\[Errno (?:13|30|1)\]|Read-only file system|Operation not permitted|EACCES\b|GatedRepo|\b(?:401 Client Error|403 Client Error|403 Forbidden|401 Unauthorized)",
         "Reading or writing there is not allowed.", "Write to the run's own output folder, or mend the rights of that path."),
    Rule("time-limit", "hang_or_timeout", 0, r"DUE TO TIME ?LIMIT|TERM_RUNLIMIT|reaching \w+ run ?time limit|walltime \d+ exceeded|activeDeadlineSeconds|DeadlineExceeded|[Jj]ob (?:has )?exceeded (?:its )?(?:time|wall)|walltime .*exceeded|TIME LIMIT",
         "The scheduler ended the job at its time limit.", "Ask for more time, or find out why it was slower than planned."),
    Rule("preempted", "preempted", 0, r"\bCANCELLED AT\b(?!.*TIME ?LIMIT)|DUE TO (?:PREEMPTION|JOB REQUEUE|NODE FAIL)|(?<!No )\b[Pp]re-?empt(?:ed|ion|ing)\b(?! victims|: \d+/\d+ nodes| is not helpful)|\bEvicted\b|[Ss]pot (?:instance )?(?:interruption|termination)|node (?:is being )?drain|instance will be terminated|NODE_FAIL",
         "The scheduler took the machine away.", "Run again; nothing is wrong with the program."),
    Rule("node-lost", "preempted", 1, r"has been marked dead because|NodeDiedError|NodeNotReady|[Nn]ode \S+ (?:is |was |has )?(?:lost|down|unreachable|not responding)\b|missed too many heartbeats|node failure",
         "A node of the run went away.", "Run again without that node; its administrator should know."),
    Rule("ended-outside", "preempted", 3, r"(?:got|[Rr]eceived|[Cc]aught) (?:death )?signal:? ?(?P<signal>1|15|12|10)\b|Received (?P<death_signal>1|15) death signal|(?:[Cc]aught|[Rr]eceived|got) (?:signal )?SIG(?:TERM|HUP|USR[12])|^Terminated\b|exit ?code\s*:?\s*143\b|[Hh]angup$",
         "The process was told to end from outside.", "Run again; if it was nohup'd over SSH, detach it from the terminal."),
    Rule("interrupted", "hang_or_timeout", 3, r"KeyboardInterrupt|Received (?P<death_signal>2) death signal|got signal: (?P<signal>2)\b|SIGINT\b",
         "Somebody interrupted the run, most often because it hung.", "See what each rank was doing (py-spy dump) before ending it."),
    Rule("gave-up", "hang_or_timeout", 3, r"^(?:[\w.]+\.)?(?:TimeoutError|TimeoutExpired)\b|[Tt]imeout \(\d+:\d+:\d+\)!|timed out after \d+ ?s|command timed out|DataLoader timed out",
         "Something was waited for in vain.", "See what each rank was doing (py-spy dump) while it waits."),
)  # fmt: skip
