"""What failed runs print, as data: one rule a kind of message, each with its class, its sentence and its advice.

A rule is a regular expression over one line of output, cleaned of escapes and of rank prefixes.
Named groups become facts; groups that end in `_bytes` are sizes with their unit. `tier` orders causes
before consequences: the lowest tier that matches anywhere wins, within it the earliest line, within
a line the order of this file. The sentences may use the rule's own groups in braces.

    0  the physical cause, named with its figures
    1  an exact exception: says what is wrong and where
    2  a general exception
    3  a symptom: somebody waited, or was ended from outside
    4  a mere consequence of another process's end
"""

from __future__ import annotations

from dataclasses import dataclass

from rsi_tui.journal.facts import Outcome

CAUSES = (
    "gpu_oom", "host_oom_killed", "oom_shm", "collective_timeout", "collective_setup", "nan_or_divergence",
    "shape_or_dtype_error", "compile_failure", "missing_dependency", "bad_config", "data_error", "checkpoint_error",
    "device_fault", "hang_or_timeout", "preempted", "disk_full", "permission", "code_error", "segfault", "unknown",
)  # fmt: skip
"""classes of failure"""

OUTCOMES: dict[str, Outcome] = {
    "gpu_oom": "oom",
    "host_oom_killed": "oom",
    "oom_shm": "oom",
    "collective_timeout": "timeout",
    "hang_or_timeout": "timeout",
    "nan_or_divergence": "diverged",
    "device_fault": "not_measured",
    "disk_full": "not_measured",
    "preempted": "preempted",
}
"""outcome of a trial by class of cause; `crashed` for all others"""


@dataclass(frozen=True)
class Rule:
    """One kind of message."""

    name: str
    cause: str
    tier: int
    pattern: str
    says: str
    """the root cause in a sentence; {group} is replaced by what was printed"""
    advice: str
    near: str = ""
    """regular expression that must occur within eight lines as well"""
    outcome: Outcome | None = None
    """where the class alone would say something else about the trial"""


_LESS_GPU = "Use a smaller micro-batch with more accumulation, activation checkpointing, or bf16."
_LESS_HOST = "Use a smaller micro-batch or fewer loader workers, or raise the memory limit."
_SHM = "Give the container more shared memory (--shm-size), or use fewer loader workers."
_SIZE = r"[\d.]+ ?(?:[KMGT]i?B|bytes?)"
_EXC = r"(?:^|[\s'\"(:])(?:[\w.]+\.)?"

MEMORY = (
    Rule("shm-full", "oom_shm", 0, r"/dev/shm.*No space left|No space left on device.*/dev/shm|(?:unable to (?:write to|open|resize|allocate) .*shared memory|shm_open).*(?:No space left|Cannot allocate|Resource temporarily)|out of shared memory",
         "Shared memory (/dev/shm) is used up.", _SHM),
    Rule("shm-nccl", "oom_shm", 0, r"failed to extend \S*/dev/shm/\S+ to (?P<requested_bytes>\d+) bytes|[Ee]rror while creating shared memory segment \S+(?: \(size (?P<segment_bytes>\d+)\))?",
         "NCCL could not create its segment in shared memory (/dev/shm).", _SHM),
    Rule("shm-bus", "oom_shm", 0, r"killed by signal: Bus error",
         "A loader worker ran out of shared memory.", _SHM),
    Rule("gpu-allocator", "gpu_oom", 0, r"(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
         "The GPU's memory is used up.", _LESS_GPU),
    Rule("gpu-runtime", "gpu_oom", 0, r"CUDA error: out of memory|cuda ?runtime error \(2\)|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|Triton Error \[CUDA\]: out of memory|[Cc]uda(?:Malloc)? ?(?:failure|failed):? '?out of memory|hipErrorOutOfMemory",
         "The GPU's memory is used up: the driver refused an allocation.", _LESS_GPU),
    Rule("gpu-nccl", "gpu_oom", 0, r"Failed to CUDA (?:host )?[cm]alloc(?: async)? (?P<requested_bytes>\d+) bytes",
         "NCCL found no GPU memory for its buffers.", _LESS_GPU),
    Rule("gpu-library", "gpu_oom", 0, r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT)_(?:STATUS_)?(?:INTERNAL_ERROR_HOST_)?ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED",
         "A CUDA library found no GPU memory for its handle or workspace.", _LESS_GPU),
    Rule("gpu-xla", "gpu_oom", 0, r"RESOURCE_EXHAUSTED:.*(?:[Oo]ut of memory|trying to allocate)|OOM when allocating tensor",
         "The accelerator's memory is used up.", _LESS_GPU),
    Rule("gpu-cache", "gpu_oom", 1, r"No available memory for the cache blocks",
         "The model leaves no GPU memory for the cache.", _LESS_GPU),
    Rule("host-cgroup", "host_oom_killed", 0, r"oom[-_]kill(?!er\b.{0,40}due to high)|OOM[- ]?[Kk]illed|[Oo]ut of memory: Kill(?:ed)? process|[Mm]emory cgroup out of memory|[Ee]xceeded (?:job|step|the|its)?\s*memory limit|OUT_OF_MEMORY\b",
         "The kernel killed a process because the host's memory or its limit was used up.", _LESS_HOST),
    Rule("host-ray", "host_oom_killed", 0, r"killed due to (?:the node running low on memory|memory pressure)|ray\.exceptions\.OutOfMemoryError|OutOfMemoryError: Task was killed",
         "Ray killed a worker because its node ran low on memory.", _LESS_HOST),
    Rule("host-allocator", "host_oom_killed", 0, r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)(?:: you tried to allocate (?P<requested_bytes>\d+) bytes)?",
         "An allocation on the host was refused: its memory limit is reached.", _LESS_HOST),
    Rule("host-numpy", "host_oom_killed", 0, rf"Unable to allocate (?P<requested_bytes>{_SIZE}) for an array",
         "An array did not fit into the host's memory.", _LESS_HOST),
    Rule("host-rust", "host_oom_killed", 0, r"^memory allocation of (?P<requested_bytes>\d+) bytes failed",
         "An allocation on the host failed.", _LESS_HOST),
    Rule("host-mmap", "host_oom_killed", 0, r"unable to mmap (?P<requested_bytes>\d+) bytes.*Cannot allocate memory",
         "A mapping on the host was refused for want of memory.", _LESS_HOST),
    Rule("host-errno", "host_oom_killed", 0, r"\[Errno 12\]|Cannot allocate memory|std::bad_alloc|^(?:[\w.]+\.)?MemoryError\b|(?:failed|unable) to allocate (?P<requested_bytes>\d+) bytes",
         "An allocation on the host failed: its memory or its limit is used up.", _LESS_HOST),
    Rule("host-worker", "host_oom_killed", 3, r"DataLoader worker .*killed by signal: Killed",
         "A loader worker was killed, most often by the kernel for want of host memory.", _LESS_HOST),
    Rule("host-sigkill", "host_oom_killed", 3, r"exit ?code\s*:?\s*(?:is |= ?)?(?:137\b|-9\b)|(?:return|exit) (?:code|status)\s*[=:]?\s*(?:137\b|-9\b)|[Ss]ignal:? ?9\b|\bSIGKILL\b(?!.*due to)|^(?:.*\d+ )?Killed\b(?! by)(?:\s+\S+.*)?$|Killed +python",
         "A process was ended by SIGKILL, most often by the kernel for want of host memory.", _LESS_HOST),
)  # fmt: skip

MACHINE = (
    Rule("file-limit", "disk_full", 0, r"File too large|\[Errno 27\]|\bEFBIG\b",
         "A file grew beyond what a trial may write.", "Write smaller files, and fewer of them.", outcome="crashed"),
    Rule("disk-full", "disk_full", 0, r"No space left on device|\[Errno (?:28|122)\]|Disk quota exceeded|\bENOSPC\b|\bEDQUOT\b|disk is full|exceeds? (?:the )?ephemeral[- ]storage",
         "A file could not be written: disk or quota is full.", "Make room, or write fewer and smaller checkpoints."),
    Rule("disk-write", "disk_full", 0, r"write\(\): fd \d+ failed with|PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos",
         "A checkpoint could not be written to the end; the disk is full or failing.", "Make room, and look at the disk's health."),
    Rule("device-ecc", "device_fault", 0, r"uncorrectable (?:ECC|NVLink)|ECC error|cudaErrorECC|NVRM: Xid|\bXid\b.*\b\d+,|fallen off the bus|GPU is lost|hardware (?:stack )?error|row remap",
         "The GPU or its memory is faulty.", "Run again on another device and have this one checked."),
    Rule("device-busy", "device_fault", 0, r"device\(?s?\)? (?:is/are )?busy or unavailable|all CUDA-capable devices are busy|cudaErrorDevicesUnavailable",
         "The GPU is held by another process or not available.", "End the process that holds it, or choose another device."),
    Rule("device-driver", "device_fault", 0, r"Driver/library version mismatch|Unable to determine the device handle|CUDA driver initialization failed|CUDA unknown error|No CUDA GPUs are available|no CUDA-capable device is detected|nvidia-smi has failed",
         "The driver does not give access to a GPU.", "Check nvidia-smi on that node, and CUDA_VISIBLE_DEVICES."),
    Rule("device-access", "device_fault", 1, r"illegal memory access|illegal instruction was encountered|misaligned address|unspecified launch failure|(?:CUBLAS|CUDNN)_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR|INTERNAL_ERROR)|Memory access fault by GPU|HSA_STATUS_ERROR|CUDA error: (?:unknown error|launch timed out)",
         "A GPU kernel failed; often a fault of the kernel, sometimes of the device.",
         "Run once more with CUDA_LAUNCH_BLOCKING=1 to see which kernel; then on another device.", outcome="crashed"),
    Rule("denied", "permission", 1, r"PermissionError|\[Errno (?:13|30|1)\]|Permission denied|Read-only file system|Operation not permitted|EACCES\b|GatedRepo|\b(?:401 Client Error|403 Client Error|403 Forbidden|401 Unauthorized)",
         "Reading or writing there is not allowed.", "Write to the run's own output folder, or mend the rights of that path."),
    Rule("time-limit", "hang_or_timeout", 0, r"DUE TO TIME ?LIMIT|DeadlineExceeded|[Jj]ob (?:has )?exceeded (?:its )?(?:time|wall)|walltime .*exceeded|TIME LIMIT",
         "The scheduler ended the job at its time limit.", "Ask for more time, or find out why it was slower than planned."),
    Rule("preempted", "preempted", 0, r"\bCANCELLED AT\b(?!.*TIME ?LIMIT)|DUE TO (?:PREEMPTION|JOB REQUEUE|NODE FAIL)|\b[Pp]re-?empt(?:ed|ion|ing)\b|\bEvicted\b|[Ss]pot (?:instance )?(?:interruption|termination)|node (?:is being )?drain|instance will be terminated|NODE_FAIL",
         "The scheduler took the machine away.", "Run again; nothing is wrong with the program."),
    Rule("ended-outside", "preempted", 3, r"(?:got|[Rr]eceived|[Cc]aught) (?:death )?signal:? ?(?P<signal>1|15|12|10)\b|Received (?P<death_signal>1|15) death signal|(?:[Cc]aught|[Rr]eceived|got) (?:signal )?SIG(?:TERM|HUP|USR[12])|^Terminated\b|exit ?code\s*:?\s*143\b|[Hh]angup$",
         "The process was told to end from outside.", "Run again; if it was nohup'd over SSH, detach it from the terminal."),
    Rule("interrupted", "hang_or_timeout", 3, r"KeyboardInterrupt|Received (?P<death_signal>2) death signal|got signal: (?P<signal>2)\b|SIGINT\b",
         "Somebody interrupted the run, most often because it hung.", "See what each rank was doing (py-spy dump) before ending it."),
    Rule("gave-up", "hang_or_timeout", 3, r"^(?:[\w.]+\.)?(?:TimeoutError|TimeoutExpired)\b|[Tt]imeout \(\d+:\d+:\d+\)!|timed out after \d+ ?s|command timed out|DataLoader timed out",
         "Something was waited for in vain.", "See what each rank was doing (py-spy dump) while it waits."),
)  # fmt: skip

COLLECTIVE = (
    Rule("port-taken", "collective_setup", 0, r"EADDRINUSE|[Aa]ddress already in use|failed to listen on any local network|errno: 98\b|Errno 98\b",
         "The rendezvous port is taken.", "Choose another --master-port, or end the run that still holds it."),
    Rule("duplicate-gpu", "collective_setup", 0, r"Duplicate GPU detected",
         "Two ranks use the same GPU.", "Let each local rank use its own device (LOCAL_RANK), with no more ranks than GPUs."),
    Rule("no-interface", "collective_setup", 0, r"no socket interface found|(?:interface or address|network interface|device) not found.*(?:gloo|SOCKET_IFNAME)|makeDeviceFor(?:Hostname|Interface)\(\)|Unable to find address for|No interface found",
         "The network interface named for the collectives does not exist.", "Set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to one that does."),
    Rule("ranks-missing", "collective_setup", 1, r"waiting for clients|clients joined|Rendezvous\w*Error|failed to connect to \S+.*(?:time|errno|refused)|client socket has (?:timed out|failed to connect)|connectFullMesh failed|gloo.*[Cc]onnect(?:ion)? (?:timeout|refused)|retrieving ncclUniqueId|MASTER_(?:ADDR|PORT) expected|environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)|Name or service not known|Temporary failure in name resolution|wait timeout after \d+ms, keys",
         "The ranks did not find each other.", "Check that all ranks start, with one address and port, and that nothing blocks it."),
    Rule("no-group", "collective_setup", 1, r"Default process group has not been initialized|trying to initialize the default process group twice|Invalid rank \d+, rank should be|world[_ ]size .*(?:mismatch|does not match)",
         "The process group is not set up as the program expects.", "Start it with torchrun, or call init_process_group once."),
    Rule("nccl-setup", "collective_setup", 2, r"nccl(?:InvalidUsage|InvalidArgument|SystemError|InternalError)|unhandled system error|NCCL WARN Bootstrap|Mismatched NCCL version",
         "NCCL could not set up its communicator.", "Run with NCCL_DEBUG=WARN; check interfaces, ranks and versions."),
    Rule("barrier", "collective_timeout", 3, r"Ranks? (?P<missing_ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<timeout_ms>\d+) ms",
         "Ranks {missing_ranks} never reached the barrier.", "Look at the logs of these ranks: the cause is there."),
    Rule("watchdog", "collective_timeout", 3, r"Watchdog caught collective operation timeout|collective operation timeout: Work",
         "A collective waited in vain for a rank.", "Look at the rank that did not enter it: another branch, a slow loader, or a death."),
    Rule("wait-timeout", "collective_timeout", 3, r"Timed out waiting (?P<timeout_ms>\d+)ms for (?:recv|send) operation|(?:all_?reduce|all_?gather|broadcast|barrier|all_?to_?all|reduce_?scatter)\b.*timed? ?out|Some NCCL operations have failed or timed out|ncclTimeout|detected timeout .*collective|Socket Timeout|store.*[Tt]imed? ?out",
         "A collective waited in vain for a rank.", "Look at the rank that did not enter it: another branch, a slow loader, or a death."),
    Rule("heartbeat", "collective_timeout", 4, r"Heartbeat monitor timed out|watchdog got stuck|Got completion with error 12",
         "The watchdog of the collectives saw no progress.", "Look at the rank that did not enter the collective."),
)  # fmt: skip

NUMBERS = (
    Rule("loss-scale", "nan_or_divergence", 0, r"[Ll]oss scale already at minimum|Minimum loss scale reached(?: \((?P<loss_scale_min>[\d.e-]+)\))?",
         "Gradients overflowed at every loss scale: training diverged.", "Lower the learning rate, lengthen warm-up, or use bf16 instead of fp16."),
    Rule("nan", "nan_or_divergence", 0, r"found NaN|(?:[Ll]oss|[Gg]rad\w*|cost|norm)\b[^.]{0,40}\b(?:is|are|became|was|contains?) (?:a )?(?:nan|NaN|inf|not finite|non-?finite)|returned nan values|non-finite (?:loss|grad|norm)|NaN or [Ii]nf|NaN (?:loss|detected|encountered)|contains either `?inf`?, `?nan|invalid values:.*nan|FloatingPointError|Input contains NaN|Unexpected result nan|[Tt]raining (?:has )?diverged|DivergenceError",
         "Loss or gradients are no longer finite.", "Lower the learning rate, clip gradients, and look at the last finite steps."),
    Rule("nan-line", "nan_or_divergence", 3, r"\b(?:\w*_)?loss['\"]?\s*[=:|]?\s*(?:tensor\()?[-+]?(?:nan|inf)\b",
         "The loss is no longer finite.", "Lower the learning rate, clip gradients, and look at the last finite steps."),
    Rule("device-index", "shape_or_dtype_error", 0, r"Assertion `[^`]*(?:[iI]ndex|dst|idx|t >= 0|target|label|n_classes|< size)[^`]*` failed|indexSelect\w*Index|ScatterGatherKernel.*Assertion|Loss\.cu.*Assertion",
         "An index lies outside its table: a token, label or position is too large.", "Check vocabulary, number of classes and sequence length."),
    Rule("device-assert", "shape_or_dtype_error", 2, r"device-side assert triggered|cudaErrorAssert",
         "An assertion in a GPU kernel failed, most often an index outside its table.", "Run on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to see which."),
    Rule("dtype", "shape_or_dtype_error", 1, r"to have the same dtype|expected scalar type \w+ but found|Input type \(.*\) and (?:weight|bias) type|not implemented for '?(?:Half|BFloat16|Long|Int|Bool|Float8\w*)|result type .* can't be cast|to have one of the following scalar types|dtype mismatch|must have the same dtype|[Ee]xpected .* dtype|Found dtype \w+ but expected \w+|Only Tensors of floating point|mismatched? dtypes?|should have the same dtype",
         "Tensors of different types meet.", "Cast one side, or put the operation under autocast."),
    Rule("shape", "shape_or_dtype_error", 1, r"shapes? cannot be multiplied|must match the (?:existing )?size|is invalid for input of size|Sizes of tensors must match|to match target batch_size|weight of size .* expected input|expects each tensor to be equal size|size mismatch, m1|doesn't match the broadcast shape|view size is not compatible|could not (?:be )?broadcast|inconsistent (?:tensor )?size|same number of dimensions|[Dd]imension out of range|expand\(.*\): the (?:number|expanded)|expects (?:split_sizes|input|at least)|einsum\(\)|expected (?:\d+D|.*\d+-?[dD]imensional)|[Tt]arget \S+ is out of bounds|index out of range in self|Expected (?:size|target size|tensor to have size|input to have)|[Ss]hape mismatch|tensor sizes? mismatch|incompatible (?:tensor )?shapes?|mat1 and mat2|batch1 tensor|selected index k out of range|invalid shape|[Mm]ismatch in shape|not match the shape|batch\w* size mismatch",
         "Tensors of shapes that do not fit meet.", "Print the shapes at the line named in the traceback."),
)  # fmt: skip

CODE = (
    Rule("state-dict", "checkpoint_error", 1, r"in loading state_dict|(?:Missing|Unexpected) key\(s\) in state_dict|copying a param with shape|[Ll]oaded state dict|parameter group that doesn't match|different number of parameter groups|mismatched_sizes|ignore_mismatched",
         "The checkpoint belongs to another model or optimizer.", "Load the checkpoint that this configuration wrote, or convert it."),
    Rule("checkpoint-file", "checkpoint_error", 1, r"PytorchStreamReader failed|failed finding central directory|invalid magic number|UnpicklingError|Weights only load failed|Safetensor\w*Error|HeaderTooLarge|MetadataIncompleteBuffer|Incomplete(?:Metadata|Buffer)|CheckpointException|Unable to find latest file|Parent directory .* does not exist|(?:[Cc]heckpoint|ckpt)\S*.{0,40}(?:not found|does not exist|corrupt|is missing)|No checkpoint|(?:FileNotFoundError|No such file).*(?:\.pth?\b|\.ckpt|\.safetensors|model\.bin\b|checkpoint|ckpt)|does not appear to have a file named|unexpected EOF.*(?:corrupt|file)",
         "A checkpoint can't be read or written.", "Check its path; take an older one if it was cut short."),
    Rule("missing-native", "missing_dependency", 1, r"undefined symbol|cannot open shared object file|GLIBC\w*_[\d.]+'? not found|DLL load failed|version `\S+' not found",
         "A native library is missing or was built for another version.", "Install the build that fits this version of torch and CUDA."),
    Rule("missing-module", "missing_dependency", 1, rf"{_EXC}(?:ModuleNotFoundError|ImportError|PackageNotFoundError)\b|No module named|cannot import name",
         "A package is missing or of another version.", "Install it into the interpreter that the contract names."),
    Rule("missing-tool", "missing_dependency", 1, r"working triton installation|Failed to find (?:a )?C compiler|InvalidCxxCompiler|No working C\+\+ compiler|command not found|CUDA_HOME environment variable is not set|library but it was not found|not compiled with CUDA|doesn't have NCCL built|Found no NVIDIA driver|NVIDIA driver on your system is too old|no kernel image is available|driver version is insufficient|detected CUDA version .*mismatches|cannot be used due to the following error|(?:is not|isn't|not been) installed|[Pp]lease (?:pip )?install|ptxas: not found|only supports Ampere|TritonMissing|No such file or directory: '(?:nvcc|gcc|g\+\+|ninja|cc|ffmpeg|git)'",
         "A tool or library that the program needs is not here.", "Install it, or switch the feature off that needs it."),
    Rule("kernel-resources", "compile_failure", 0, r"out of resources?: (?:shared memory|registers)|OutOfResources|uses too much shared data",
         "A compiled kernel needs more shared memory or registers than the device has.", "Use smaller blocks or fewer stages for this device."),
    Rule("native-build", "compile_failure", 1, r"nvcc fatal\s*: .*?(?:'(?P<arch>(?:compute|sm)_\w+)')?$|ptxas (?:fatal|error)|PTXASError|ninja: build stopped|Error building extension|Error compiling objects|Cpp?CompileError|C\+\+ [Cc]ompile [Ee]rror|command '\S*(?:gcc|g\+\+|nvcc|ninja|cc)\S*' failed|fatal error: \S+\.h|LLVM ERROR|\bnvrtc\b.*(?:error|failed)|NVRTC_ERROR|hipcc.*error|triton\.\S*CompilationError|CompileTimeAssertion|PassManager::run failed",
         "Native code could not be compiled.", "Read the first compiler error above it; check that compiler, torch and device fit."),
    Rule("torch-compile", "compile_failure", 2, r"BackendCompilerFailed|InductorError|torch\._(?:dynamo|inductor)\.exc\.\w+|LoweringException|torch\._dynamo\.exc|\bInternalTorchDynamoError|recompile_limit|fullgraph=True",
         "torch.compile could not compile this model.", "Compile a smaller part, or leave it eager."),
    Rule("arguments", "bad_config", 1, r"error: (?:unrecognized arguments?|argument |the following arguments are required|ambiguous option|no such option|invalid choice)|No such option|[Gg]ot unexpected extra argument|invalid choice:|[Mm]issing option|unknown (?:option|flag|argument)",
         "The command line has an argument that the program does not take.", "Compare the command with the program's --help."),
    Rule("config-file", "bad_config", 1, r"omegaconf\.\S+|hydra\.\S*|Could not override|yaml\.\S+Error|ScannerError|TOMLDecodeError|pydantic\S*ValidationError|\d+ validation errors? for|Config\w*Error|ConfigurationError|Invalid config|[Ii]nvalid value for|configparser\.",
         "The configuration can't be read or has a value that is not allowed.", "Correct the setting that is named."),
    Rule("batch-arithmetic", "bad_config", 1, r"[Cc]heck batch related parameters|(?:must|should|to) be (?:evenly )?divisible|not (?:evenly )?divisible|batch[_ ]size\w*.{0,60}(?:has|have|must|should|needs?) to be|[Mm]icro[_ ]batch\w*(?: size)?(?: per gpu)?: ?(?P<micro_batch>\d+) has to be|(?:Train|Micro) batch size\b.*(?P<batch>-?\d+) has to be|world size .*(?:is not|must|should)|(?:num|n)_\w+ (?:must|should|has to) be|invalid device ordinal|invalid argument value|[Uu]nknown (?:optimizer|model|scheduler|backend|attention)|tensor[- ]model[- ]parallel|expected .* to be (?:greater|less) than",
         "Settings do not fit each other.", "Correct the batch sizes, parallel sizes or names that are printed."),
    Rule("config-assert", "bad_config", 1, r"^(?:[│❱\s\d>-]*)assert .*(?:args\.|cfg|config|batch|world_size|n_head|num_|parallel|% )",
         "A setting does not pass the program's own check.", "Correct the setting that the assertion names.", near=r"AssertionError"),
    Rule("many-files", "bad_config", 1, r"Too many open files|\[Errno 24\]|received 0 items of ancdata",
         "The limit of open files is reached.", "Raise it (ulimit -n), or use fewer loader workers."),
    Rule("data", "data_error", 1, r"LocalEntryNotFound|(?:Dataset\w*|DataFiles)(?:NotFound|Generation|Build)\w*Error|Arrow(?:Invalid|TypeError)|JSON ?(?:Decode|[Pp]arse) ?[Ee]rror|Not able to read records|UnicodeDecodeError|UnidentifiedImageError|cannot identify image|image file is truncated|got num_samples=0|num_samples should be a positive|BadZipFile|BadGzipFile|tarfile\.ReadError|ParserError|EmptyDataError|zlib\.error|lmdb\.\w*Error|Compressed file ended|[Uu]nable to open file|couldn't connect to 'https|Max retries exceeded|urlopen error|Couldn't (?:find|reach) .*(?:dataset|Hub|on the)|RepositoryNotFound|[Cc]orrupt(?:ed)? (?:JPEG|PNG|record|index|shard|data)|CRC.*(?:fail|mismatch)|index file doesn't match|[Dd]ataset .*(?:is empty|not found|does not exist)|Errno 5\]",
         "Training data are missing, unreachable or damaged.", "Check the path and the file that are named."),
    Rule("no-file", "data_error", 1, r"FileNotFoundError|\[Errno 2\]|No such file or directory|NotADirectoryError|\[Errno 20\]",
         "A file that the program reads is not there.", "Name it under `inputs` in workload.toml, or correct its path."),
    Rule("autograd", "code_error", 1, r"does not require grad|modified by an inplace operation|backward through the graph a second time|finished reduction in the prior iteration|on the same device, but found|leaf [Vv]ariable that requires grad|only for scalar outputs|re-initialize CUDA in forked|bootstrapping phase|[Mm]ismatch between collectives|marked (?:a )?variable ready (?:only once|twice)|ready to be reduced|Cannot access data pointer",
         "The program uses autograd or the process group in a way that is not allowed.", "Correct the line named in the traceback."),
    Rule("syntax", "code_error", 1, rf"{_EXC}(?:SyntaxError|IndentationError|TabError)\b",
         "The program is not valid Python.", "Correct the line that is named."),
    Rule("programming", "code_error", 2, r"^(?:[\w.]+\.)?(?:NameError|TypeError|AttributeError|KeyError|IndexError|UnboundLocalError|ZeroDivisionError|NotImplementedError|RecursionError|AssertionError|ValueError|StopIteration|OverflowError)\b(?!\s+Traceback)",
         "The program has an error of its own.", "Correct the line named in the traceback."),
    Rule("segfault", "segfault", 3, r"(?!.*potential root causes)(?:[Ss]egmentation fault|SIGSEGV)(?!.*other unexpected errors)|exit ?code\s*:?\s*(?:is |= ?)?(?:139\b|-11\b)|(?:return|exit) (?:code|status)\s*[=:]?\s*(?:139\b|-11\b)|[Ss]ignal:? ?\(?11\b|[Ii]llegal instruction \(|SIGILL|SIGFPE|double free or corruption|free\(\): invalid|corrupted (?:size|double)|munmap_chunk|malloc\(\): |stack smashing",
         "Native code crashed.", "Find the library in the C stack (faulthandler); check that its build fits this torch."),
    Rule("bus-error", "oom_shm", 3, r"\bBus error\b|SIGBUS",
         "A mapped page was not there, most often because shared memory is used up.", _SHM),
)  # fmt: skip

CONSEQUENCES = (
    Rule("peer-gone", "unknown", 4, r"Connection (?:closed|reset) by (?:remote )?peer|[Bb]roken pipe|Connection reset|ncclRemoteError|remote process exited|recvValue failed|ECONNRESET|NCCL communicator was aborted|another rank",
         "Another process of the run went away; this one only noticed it.", "Look at the logs of the other ranks: the cause is there."),
    Rule("worker-gone", "unknown", 4, r"ChildFailedError|CalledProcessError|[Ww]orker \d+ has failed|worker died|unexpected system error|exited unexpectedly|actor (?:is dead|died)|Root Cause \(first observed|returned non-zero exit status",
         "A process of the run died; its own output is not here.", "Look at that process's log and at the kernel's (dmesg)."),
    Rule("abort", "unknown", 4, r"\bAborted\b|SIGABRT|exit ?code\s*:?\s*(?:134\b|-6\b)|terminate called|Fatal Python error|[Ss]ignal:? ?\(?6\b",
         "The process aborted itself; what it printed before does not say why.", "Run it alone with faulthandler enabled."),
    Rule("other-exception", "unknown", 4, r"^(?:[A-Za-z_][\w]*\.)*(?:[A-Z]\w*(?:Error|Exception|Failure|Interrupt|Exit)|RuntimeError)\b:?",
         "The program stopped with an exception of no known kind.", "Read the traceback."),
)  # fmt: skip

RULES: tuple[Rule, ...] = (*MEMORY, *MACHINE, *COLLECTIVE, *NUMBERS, *CODE, *CONSEQUENCES)
"""all rules, in the order in which one line is read"""
