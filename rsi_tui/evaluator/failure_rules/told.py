"""What the text of an exception, the frames that lead to it, or a mere record tell where no rule knows the line.

`told-*` read the nouns of an exception's message (a checkpoint, a shape, an option, a record), `in-*` the
files of its last frames, `record-*` the nouns of a line in which something says that it did not succeed.
They are asked last: an exact rule is always preferred, and a record weighs less than a symptom.
"""

from __future__ import annotations

from dataclasses import replace

from rsi_tui.evaluator.failure_rules.rule import LESS_GPU, LESS_HOST, Rule

_OWN = (
    r"(?:Name|Type|Attribute|Key|UnboundLocal|ZeroDivision|Recursion|Syntax|Indentation|Import|ModuleNotFound|Connection\w*|"
    r"BrokenPipe|ChildFailed|CalledProcess|DistBackend|RayTask|RayActor|TrainingFailed|Trial\w*|Tune)(?:Error|Exception)"
)
_CODE = r"(?!.*\[Errno|.*\b(?:kwargs?|keyword|positional|functions?|methods?|callbacks?|subclass|callable)\b)"
_SAID = rf"^(?:[\w.]+\.)?(?!{_OWN}){_CODE}\w*(?:Error|Exception|Failure)\b:? .*"
"""an exception whose words are its author's, not Python's, and speak of no code"""
_ANY = r"^(?:[\w.]+\.)?(?:(?:Key|Assertion|Value|Runtime|Index|NotImplemented|OS|EOF|Timeout|Type)Error|Exception)\b"
_RECORD = (
    r"^(?!(?:[\w.]+\.)?\w*(?:Error|Exception)\b)(?!.*(?:failed to run|exit code|exitcode|returned non-zero))"
    r"(?=.*(?<![-/'\"])\b(?:[Ee]rrors?(?! ?rates?\b| ?[:=]? ?\d)|ERROR|[Ff]atal|FATAL|CRITICAL|panic(?:ked)?|[Ff]ail(?:ed|ure|s)?(?! ?\w* ?[:=] ?\d)|FAILED|[Aa]bort(?:ed|ing)|"
    r"[Uu]nable to|[Cc]ould not|[Cc]annot|[Cc]an't|[Ii]nvalid|[Rr]efus(?:ed|ing)|exceeded|exhausted|insufficient|not enough|denied|unreachable|unresponsive|"
    r"[Kk]ill(?:ed|ing)|crash(?:ed)?|conflict|received|[Rr]ejected|giving up|gave up)\b(?![-/])).*"
)
"""a line in which something other than an exception says that it did not succeed"""
_GPU = r"\b(?:GPU|CUDA|[Dd]evice|accelerator)\b.{0,40}\b[Mm]emory\b|\bVRAM\b"
_HOST = r"OOM[- ]killer|\b[Mm]emory limit|\b(?:host|system|CPU|main|pinned) (?:memory|RAM)\b|out of memory\b"
_WAIT = r"\b(?:[Bb]arrier|[Aa]ll-?_?(?:reduce|gather|to-?_?all)|reduce_?-?scatter|monitoredBarrier|(?:heard|waiting|heartbeats?) (?:from|for) ranks?|missing ranks?|peer rank|ranks? \[?\d+.{0,40}(?:unresponsive|did not|timed out))"
_MEET = (
    r"\b(?:rendezvous|process group|communicator|host ?names?|hostfile|(?:master|head) (?:address|node)|NCCL|MPI|RDMA|InfiniBand|network interface|TCP connection|over ssh|not reachable|connect to (?!.{0,12}https?)|[Hh]osts? .{0,40}reach\w*|"
    r"bind to port|nodes? .{0,40}(?:responded|joined)|unreachable|peers?)\b"
)
_LOSS = r"\b(?:NaNs?|nan|[Ii]nf(?:inite|inity)?|[Nn]on-?finite|[Dd]iverg(?:ed|es|ence|ing)|[Ee]xplod(?:ed|ing)|[Oo]verflow(?:ed|s)?|collapsed)\b(?! (?:count|grads?|check))"
_RIGHTS = r"\b(?:[Pp]ermissions?|[Ff]orbidden|[Uu]nauthori[sz]ed|[Cc]redentials?|(?:access|API|auth\w*) (?:token|key)|[Aa]uthenticat\w+|[Tt]oken (?:is|was|has) (?:required|missing|expired|invalid|not valid)|[Nn]o token found|logged in)\b"
_DISK = r"\b(?:[Dd]isk (?:quota|space|is full)|[Qq]uota (?:reached|exceeded)|[Ww]rite failed)\b"
_DEVICE = r"\b(?:GPU|NVML|NVLink|[Dd]river|accelerator)\b.{0,40}\b(?:not respond\w*|lost|crash\w*|hung|hang|fault\w*|reset|fell)\b|\b[Hh]ealth\w* .{0,30}\bGPU\b|\bGPU \d+ (?:has )?failed\b|\bNVLink .{0,20}errors?\b"
_SAVED = r"(?:\b(?:[Cc]heckpoints?|ckpt|[Ss]tate[ _]dict|[Oo]ptimizer states?|Sharded(?:Tensor|Object)|[Rr]estor(?:e|ing)|[Rr]esum(?:e|ing)|weights file)\b|\w\.(?:pth|ckpt|safetensors|distcp)\b)(?!.*utils\.checkpoint)"
_COMPILER = r"\b(?:[Cc]ompil(?:e|er|ation|ing)|[Ll]owering|to lower|[Ll]inker|clang(?:\+\+)?|gcc|kernel build\w*|ptxas|nvcc|codegen|autotun\w+|FX node|[Mm]eta tensors|fake tensors|kernel build)\b"
_SETTING = r"\b(?:[Cc]onfig(?:uration)?s?|[Aa]rguments?|[Oo]ptions?|[Ff]lags?|[Ss]ettings?|[Hh]yper-?param\w*|ya?ml|toml|[Pp]arallel\w*|[Ww]orld[ _]?[Ss]ize|WORLD_SIZE|(?:cp|tp|pp|dp|ep)_size|(?:micro[ _-])?batch(?:[ _]size| of)|unknown keys?|num_\w+|n_(?:heads?|layers?|embd|gpus?|nodes?|experts?)|Trainer|divisible|[Ff]ields?|[Pp]artition|[Qq]uota|nproc\w*|GPUs?\b.{0,30}\b(?:visible|available))\b"
_DATA = (
    r"(?:\b(?:[Dd]ata ?(?:sets?|files?|loaders?|pipeline)|[Ss]hards?|[Rr]ecords?|jsonl?|csv|[Pp]arquet|tar|[Ii]mages?|[Vv]ideos?|[Aa]udio|[Ll]abels?|[Cc]orpus|[Cc]olumns?|"
    r"[Ss]amples?|annotations?|truncated|[Cc]orrupt\w*|[Dd]ecod(?:e|ing)|mmap|file size|[Bb]ucket|[Bb]lob|hash mismatch|checksum|[Tt]okenizer|index files?|unexpected EOF|[Dd]ownload\w*|"
    r"[Ff]iles? (?:is|are|has|have|ended|under|in|found|missing)|(?:[Nn]o|[Mm]issing|[Ee]mpty) (?:\w+ ){0,2}files?)\b)"
)
_VERSION = (
    r"(?:\b(?:out of date|upgrade|re-?install(?:ed)?|[Nn]inja|incompatible version|does not recognize this architecture|nightly|[Ff]ound v?\d+\.\d+|built (?:for|with(?:out)?) (?:CUDA|ROCm|torch|PyTorch|Python|another|a different))\b|"
    r"[Vv]ersions? .{0,60}(?:required|older|newer|too old|mismatch|does not match|conflict)|\d or (?:later|newer|above))"
)

_TOLD = (
    Rule("told-gpu", "gpu_oom", 2, rf"{_SAID}(?:{_GPU})", "The GPU's memory is used up.", LESS_GPU),
    Rule("told-host", "host_oom_killed", 2, rf"{_SAID}(?:{_HOST})", "The host's memory or its limit is used up.", LESS_HOST),
    Rule("told-wait", "collective_timeout", 2, rf"{_SAID}{_WAIT}", "A collective waited in vain for a rank.", "Look at the log of the rank that did not enter it."),
    Rule("told-meeting", "collective_setup", 2, rf"{_SAID}{_MEET}", "The ranks did not find each other.", "Check addresses, ports and interfaces, and that all ranks start."),
    Rule("told-rights", "permission", 2, rf"{_SAID}{_RIGHTS}", "Reading or writing there is not allowed.", "Mend the rights of that path, or the token."),
    Rule("told-disk", "disk_full", 2, rf"{_SAID}{_DISK}", "A file could not be written: disk or quota is full.", "Make room, or write fewer and smaller checkpoints."),
    Rule("told-device", "device_fault", 2, rf"{_SAID}(?:{_DEVICE})", "The GPU or its driver failed.", "Run again on another device and have this one checked."),
    Rule("told-checkpoint", "checkpoint_error", 2, rf"{_SAID}(?:{_SAVED}|\w\.pt\b)", "A checkpoint does not fit or is not whole.", "Load the checkpoint that this configuration wrote, or an older one."),
    Rule("told-compiler", "compile_failure", 2, rf"{_SAID}{_COMPILER}", "A compiler failed.", "Compile a smaller part, or leave it eager."),
    Rule("told-version", "missing_dependency", 2, rf"{_SAID}{_VERSION}", "Something that the program needs is missing or of another version.", "Install the version that is asked for."),
    Rule("told-setting", "bad_config", 2,
         rf"(?!.*\b(?:[Ss]hapes?|dtypes?|[Tt]ensors?(?![ _-](?:model[ _-])?parallel)|[Dd]imensions?|nan|NaN)\b){_SAID}(?:{_SETTING}|\s--\w|device type for|\w+_\w+ \([\d.e+-]+\) ?[<>])|^KeyError: .*(?:\bconfig\b|\.ya?ml\b|\.toml\b)",
         "A setting is refused.", "Correct the setting that is named."),
    Rule("told-loss", "nan_or_divergence", 2, rf"{_SAID}{_LOSS}", "Loss or gradients are no longer finite.", "Lower the learning rate, clip gradients, and look at the last finite steps."),
    Rule("told-shape", "shape_or_dtype_error", 2,
         rf"(?!.*\b(?:leaf|deepcopy|requires_grad|[Dd]ataset|parallel)\b){_SAID}(?:\b(?:[Ss]hapes?|[Dd]imensions?|dims?|dtypes?|[Tt]ensors?|[Ss]equence length|block size|context length|out of (?:bounds|range) for|[Vv]ocab\w*|channels|ScalarType|FlatParameter|torch\.Size|\d-?D|[Rr]earrang\w*|[Bb]roadcasting)\b|(?:expected|got) \([\w, ]+\)|(?:is|was|are) \(\w+, [\w, ]+\))"
         r"|^TypeError: .*(?:ScalarType|\bdtype\b|\bBFloat\w*)|^IndexError: .*out of (?:bounds|range) for (?:axis|dimension)",
         "Tensors of shapes or types that do not fit meet.", "Print shapes and types at the line named in the traceback."),
    Rule("told-data", "data_error", 2, rf"{_SAID}{_DATA}", "Training data are missing, unreachable or damaged.", "Check the path and the file that are named."),
    Rule("told-refused", "bad_config", 2, rf"(?!.*invalid literal){_SAID}\b(?:[Ii]nvalid|[Uu]nsupported|[Uu]nknown|[Uu]nrecogni[sz]ed|[Nn]ot supported|[Mm]ust be)\b",
         "A value is refused.", "Correct the value that is named."),
    Rule("in-checkpoint", "checkpoint_error", 2, _ANY, "Reading or writing a checkpoint failed.", "Load the checkpoint that this configuration wrote, or an older one.",
         near=r'File "[^"]*(?:distributed/checkpoint/|dist_checkpointing|(?<!utils)/checkpoint(?:ing|er|s)?\.py|torch/serialization\.py|_optim_utils\.py|orbax)|\bload_state_dict\(|torch\.load\(|load_checkpoint\('),
    Rule("in-compiler", "compile_failure", 2, _ANY, "A compiler failed.", "Compile a smaller part, or leave it eager.",
         near=r'File "[^"]*(?:torch/_inductor/|triton/(?:compiler|backends)/|torch/_dynamo/(?:output_graph|symbolic_convert|variables)|cpp_extension\.py|jax/_src/(?:compiler|interpreters/mlir))'),
    Rule("in-settings", "bad_config", 2, r"^(?:[\w.]+\.)?(?:(?:Key|Assertion|Value|Runtime|NotImplemented)Error|Exception)\b", "A setting does not pass the program's own check.",
         "Correct the setting that the traceback checks.",
         near=r'File "[^"]*(?:/arguments?\.py|/argparse\.py|/configs?/|/config\w*\.py|parallel_dims\.py|training_args\.py)|, in (?:_?validate_\w*|parse_args|__post_init__|check_config|load_config)$'),
    Rule("in-rendezvous", "collective_setup", 2, r"^(?:[\w.]+\.)?(?:(?:Value|Runtime|Timeout|OS|Connection\w*)Error|Exception)\b", "The ranks did not find each other.",
         "Check that all ranks start, with one address and port, and that nothing blocks it.",
         near=r'File "[^"]*(?:distributed/rendezvous|elastic/rendezvous)|, in (?:init_process_group|_?init_dist\w*)$|\binit_process_group\(|= TCPStore\('),
    Rule("in-loader", "data_error", 2, r"^(?:[\w.]+\.)?(?!(?:Key|Type|Attribute|Name|Assertion|Import)Error)[A-Z]\w*(?:Error|Exception)\b(?!: Caught (?:Key|Type|Attribute|Name|Assertion|Import)Error)",
         "Training data could not be read.", "Read the same record alone, and check the file that is named.",
         near=r'in DataLoader worker|torch/utils/data/_utils/(?:worker|fetch)\.py|File "[^"]*(?:/webdataset/|/streaming/base/|indexed_dataset|/h5py/|/PIL/|/decord/|/torchaudio/|/zarr/|/lmdb/|/pyarrow/|/fsspec/|/pandas/io/|/s3fs/|/gcsfs/|/datasets/(?:builder|packaged_modules))'),
)  # fmt: skip
TOLD = tuple(replace(rule, fallback=True) for rule in _TOLD)

_ADVICE = "Read what is said above that line."
_RECORDED = (
    Rule("record-gpu", "gpu_oom", 3, rf"{_RECORD}(?:{_GPU})", "Something about the GPU's memory did not succeed.", LESS_GPU),
    Rule("record-host", "host_oom_killed", 3, rf"{_RECORD}(?:{_HOST})", "Something about the host's memory did not succeed.", LESS_HOST),
    Rule("record-wait", "collective_timeout", 3, rf"{_RECORD}{_WAIT}", "A collective waited in vain for a rank.", "Look at the log of the rank that did not enter it."),
    Rule("record-rights", "permission", 3, rf"{_RECORD}{_RIGHTS}", "Something is not allowed.", "Mend the rights of that path, or the token."),
    Rule("record-disk", "disk_full", 3, rf"{_RECORD}{_DISK}", "Something could not be written.", "Make room, or write fewer and smaller checkpoints."),
    Rule("record-device", "device_fault", 3, rf"{_RECORD}(?:{_DEVICE})", "Something about a device did not succeed.", "Run again on another device and have this one checked."),
    Rule("record-time", "hang_or_timeout", 3, rf"{_RECORD}\b(?:[Ww]all ?(?:clock|time)|time limit|[Nn]o output)\b", "Time ran out.", "Ask for more time, or see what it waits for."),
    Rule("record-cloud", "preempted", 3, rf"{_RECORD}\b(?:termination notice|[Pp]reempt\w+|reclaim\w*)\b", "The machine was taken away.", "Run again; nothing is wrong with the program."),
    Rule("record-checkpoint", "checkpoint_error", 3, rf"{_RECORD}{_SAVED}", "Something about a checkpoint did not succeed.", "Load the checkpoint that this configuration wrote, or an older one."),
    Rule("record-compiler", "compile_failure", 3, rf"{_RECORD}{_COMPILER}", "A compiler did not succeed.", _ADVICE),
    Rule("record-loss", "nan_or_divergence", 3, rf"{_RECORD}{_LOSS}", "Loss or gradients are no longer finite.", "Lower the learning rate, clip gradients, and look at the last finite steps."),
    Rule("record-network", "collective_setup", 3, rf"{_RECORD}{_MEET}", "Something between the processes did not succeed.", "Check addresses, ports and interfaces, and that all ranks start."),
    Rule("record-data", "data_error", 3, rf"{_RECORD}{_DATA}", "Something about the training data did not succeed.", "Check the path and the file that are named."),
    Rule("record-setting", "bad_config", 3, rf"{_RECORD}{_SETTING}", "A setting is refused.", "Correct the setting that is named."),
    Rule("record-version", "missing_dependency", 3, rf"{_RECORD}\b(?:[Pp]ackages?|[Mm]odules?|[Vv]ersions?|[Ii]nstall(?:ed|ing)?|[Ii]mport(?:ing)?|[Ll]ibrary|libraries|[Dd]ependency|[Dd]ependencies|[Ii]mage tag|plugin)\b",
         "Something that the program needs is missing or of another version.", "Install the version that is asked for."),
)  # fmt: skip
RECORDED = tuple(replace(rule, fallback=True, aside=True) for rule in _RECORDED)
