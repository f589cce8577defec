"""What the text of an exception, or the frames that lead to it, tell where no rule knows the exception itself.

Each rule reads the nouns of a message (a checkpoint, a shape, an option, a record) or the files of the
last frames. They come last among causes: an exact rule is always preferred.
"""

from __future__ import annotations

from dataclasses import replace

from rsi_tui.evaluator.failure_rules.rule import Rule

_OWN = (
    r"(?:Name|Type|Attribute|Key|UnboundLocal|ZeroDivision|Recursion|Syntax|Indentation|Import|ModuleNotFound|Connection\w*|"
    r"BrokenPipe|ChildFailed|CalledProcess|DistBackend|RayTask|RayActor|TrainingFailed|Trial\w*|Tune)(?:Error|Exception)"
)
_SAID = rf"^(?:[\w.]+\.)?(?!{_OWN})(?!.*\[Errno|.*\b(?:kwargs?|keyword|positional|functions?|methods?|callbacks?|subclass|callable)\b)\w*(?:Error|Exception|Failure)\b:? .*"
"""an exception whose words are its author's, not Python's"""
_ANY = r"^(?:[\w.]+\.)?(?:(?:Key|Assertion|Value|Runtime|Index|NotImplemented|OS|EOF|Timeout|Type)Error|Exception)\b"

_RECORD = (
    r"^(?!(?:[\w.]+\.)?\w*(?:Error|Exception)\b)(?!.*(?:failed to run|exit code|exitcode|returned non-zero))(?=.*\b(?:[Ee]rrors?(?! ?rates?\b| ?[:=]? ?\d)|ERROR|[Ff]atal|FATAL|CRITICAL|panic(?:ked)?|[Ff]ail(?:ed|ure|s)?|FAILED|"
    r"[Aa]bort(?:ed|ing)|[Uu]nable to|[Cc]ould not|[Cc]annot|[Cc]an't|[Ii]nvalid|[Rr]efus(?:ed|ing))\b).*"
)
"""a line in which something other than an exception says that it did not succeed"""

RECORDED = tuple(replace(rule, fallback=True, aside=True) for rule in (
    Rule("record-checkpoint", "checkpoint_error", 3, rf"{_RECORD}\b(?:[Cc]heckpoints?|ckpt|state[ _]dict|[Rr]estor(?:e|ing)|[Rr]esum(?:e|ing)|weights file)\b",
         "Something about a checkpoint did not succeed.", "Load the checkpoint that this configuration wrote, or an older one."),
    Rule("record-compiler", "compile_failure", 3, rf"{_RECORD}\b(?:[Cc]ompil(?:e|er|ation|ing)|[Ll]inker|ptxas|nvcc|codegen|kernel build)\b",
         "A compiler did not succeed.", "Read what it says above that line."),
    Rule("record-loss", "nan_or_divergence", 3, rf"{_RECORD}\b(?:diverged?|divergence|NaNs?|nan|non-?finite|overflow(?:ed|s)?|exploded|exploding)\b(?! (?:count|grads?|check))",
         "Loss or gradients are no longer finite.", "Lower the learning rate, clip gradients, and look at the last finite steps."),
    Rule("record-network", "collective_setup", 3, rf"{_RECORD}\b(?:rendezvous|process group|communicator|hostname|peers?|master (?:address|node)|collective|NCCL|MPI|RDMA|InfiniBand|network interface|connect to)\b",
         "Something between the processes did not succeed.", "Check addresses, ports and interfaces, and that all ranks start."),
    Rule("record-data", "data_error", 3,
         rf"{_RECORD}\b(?:[Dd]ata ?(?:sets?|files?|loaders?|pipeline)|[Ss]hards?|[Rr]ecords?|jsonl|csv|[Pp]arquet|\.tar|[Ii]mages?|[Vv]ideos?|[Aa]udio|[Ll]abels?|[Cc]orpus|[Ss]amples?|[Dd]ecod(?:e|ing)|[Bb]ucket|[Bb]lob|[Tt]okenizer|unexpected EOF|[Dd]ownload)\b",
         "Something about the training data did not succeed.", "Check the path and the file that are named."),
    Rule("record-setting", "bad_config", 3, rf"{_RECORD}\b(?:[Cc]onfig(?:uration)?s?|[Aa]rguments?|[Oo]ptions?|[Ff]lags?|[Ss]ettings?|[Hh]yper-?param\w*|ya?ml|toml|[Ff]ields?|[Pp]artition|[Qq]uota|nproc\w*|GPUs (?:are|is) (?:visible|available))\b",
         "A setting is refused.", "Correct the setting that is named."),
    Rule("record-version", "missing_dependency", 3, rf"{_RECORD}\b(?:[Pp]ackages?|[Mm]odules?|[Vv]ersions?|[Ii]nstall(?:ed|ing)?|[Ii]mport(?:ing)?|[Ll]ibrary|libraries|[Dd]ependency|[Dd]ependencies|[Ii]mage tag|plugin)\b",
         "Something that the program needs is missing or of another version.", "Install the version that is asked for."),
))  # fmt: skip

TOLD = tuple(replace(rule, fallback=True) for rule in (
    Rule("told-checkpoint", "checkpoint_error", 2, rf"{_SAID}\b(?:[Cc]heckpoints?|ckpt|state[ _]dict|Sharded(?:Tensor|Object)|[Rr]estor(?:e|ing))\b(?!.*utils\.checkpoint)",
         "A checkpoint does not fit or is not whole.", "Load the checkpoint that this configuration wrote, or an older one."),
    Rule("told-compiler", "compile_failure", 2, rf"{_SAID}(?:\b(?:[Cc]ompil(?:e|er|ation|ing)|[Ll]owering|ptxas|nvcc|codegen|autotun\w+|FX node|[Mm]eta tensors|fake tensors)\b)",
         "A compiler failed.", "Compile a smaller part, or leave it eager."),
    Rule("told-version", "missing_dependency", 2, rf"{_SAID}(?:\b(?:out of date|upgrade|re-?install|[Nn]inja|incompatible version|does not recognize this architecture|built (?:for|with(?:out)?))\b|[Vv]ersion .{{0,60}}(?:required|older|newer|too old|mismatch|does not match))",
         "Something that the program needs is missing or of another version.", "Install the version that is asked for."),
    Rule("told-setting", "bad_config", 2,
         rf"(?!.*\b(?:[Ss]hapes?|dtypes?|[Tt]ensors?|[Dd]imensions?)\b){_SAID}(?:\b(?:[Cc]onfig(?:uration)?s?|[Aa]rguments?|[Oo]ptions?|[Ff]lags?|[Ss]ettings?|[Hh]yper-?param\w*|[Pp]arallel\w*|[Ww]orld[ _]?[Ss]ize|WORLD_SIZE|batch[ _]size|unknown keys?|(?:num|n)_\w+|Trainer|divisible)\b(?!.{{0,40}}(?:scalar type|tensor))|\s--\w|device type for)",
         "A setting is refused.", "Correct the setting that is named."),
    Rule("told-shape", "shape_or_dtype_error", 2, rf"(?!.*\b(?:leaf|deepcopy|requires_grad|[Dd]ataset)\b){_SAID}\b(?:[Ss]hapes?|[Dd]imensions?|dtypes?|[Tt]ensors?|[Ss]equence length|block size|context length|out of (?:bounds|range) for|[Vv]ocab\w*|channels|ScalarType|FlatParameter)\b|^TypeError: .*(?:ScalarType|\bdtype\b|\bBFloat16\b)|^IndexError: .*out of (?:bounds|range) for (?:axis|dimension)",
         "Tensors of shapes or types that do not fit meet.", "Print shapes and types at the line named in the traceback."),
    Rule("told-data", "data_error", 2,
         rf"{_SAID}\b(?:[Dd]ata ?(?:sets?|files?)|[Ss]hards?|[Rr]ecords?|jsonl?|csv|[Pp]arquet|tar|[Ii]mages?|[Vv]ideos?|[Aa]udio|[Ll]abels?|[Cc]orpus|[Cc]olumns?|[Ss]amples?|annotations?|moov|truncated|[Cc]orrupt\w*|[Dd]ecod(?:e|ing)|mmap|file size|[Bb]ucket|[Bb]lob|hash mismatch|checksum|[Tt]oken(?:s|ized)? file|[Ff]iles? (?:is|are|has|have|ended|under|in|found|missing)|(?:[Nn]o|[Mm]issing|[Ee]mpty) (?:\w+ ){0,2}files?)\b",
         "Training data are missing, unreachable or damaged.", "Check the path and the file that are named."),
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
         near=r'in DataLoader worker|torch/utils/data/_utils/(?:worker|fetch)\.py|File "[^"]*(?:/webdataset/|/streaming/base/|indexed_dataset|/h5py/|/PIL/|/decord/|/torchaudio/|/zarr/|/lmdb/|/pyarrow/|/fsspec/|/s3fs/|/gcsfs/|/datasets/(?:builder|packaged_modules))'),
))  # fmt: skip
