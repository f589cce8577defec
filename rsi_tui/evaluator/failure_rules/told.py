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

TOLD = tuple(replace(rule, fallback=True) for rule in (
    Rule("told-checkpoint", "checkpoint_error", 2, rf"{_SAID}\b(?:[Cc]heckpoints?|ckpt|state[ _]dict|Sharded(?:Tensor|Object)|[Rr]estor(?:e|ing))\b(?!.*utils\.checkpoint)",
         "A checkpoint does not fit or is not whole.", "Load the checkpoint that this configuration wrote, or an older one."),
    Rule("told-compiler", "compile_failure", 2, rf"{_SAID}(?:\b(?:[Cc]ompil(?:e|er|ation|ing)|[Ll]owering|ptxas|nvcc|codegen|autotun\w+|FX node|[Mm]eta tensors|fake tensors)\b)",
         "A compiler failed.", "Compile a smaller part, or leave it eager."),
    Rule("told-version", "missing_dependency", 2, rf"{_SAID}(?:\b(?:out of date|upgrade|re-?install|[Nn]inja|incompatible version|does not recognize this architecture|built (?:for|with(?:out)?))\b|[Vv]ersion .{{0,60}}(?:required|older|newer|too old|mismatch|does not match))",
         "Something that the program needs is missing or of another version.", "Install the version that is asked for."),
    Rule("told-setting", "bad_config", 2,
         rf"{_SAID}(?:\b(?:[Cc]onfig(?:uration)?s?|[Aa]rguments?|[Oo]ptions?|[Ff]lags?|[Ss]ettings?|[Hh]yper-?param\w*|[Pp]arallel\w*|[Ww]orld[ _]?[Ss]ize|WORLD_SIZE|batch[ _]size|unknown keys?|(?:num|n)_\w+|Trainer|divisible)\b(?!.{{0,40}}(?:scalar type|tensor))|\s--\w|device type for)",
         "A setting is refused.", "Correct the setting that is named."),
    Rule("told-shape", "shape_or_dtype_error", 2, rf"(?!.*\b(?:leaf|deepcopy|requires_grad|[Dd]ataset)\b){_SAID}\b(?:[Ss]hapes?|[Dd]imensions?|dtypes?|[Tt]ensors?|[Ss]equence length|block size|context length|out of (?:bounds|range) for|[Vv]ocab\w*|channels|ScalarType|FlatParameter)\b|^TypeError: .*(?:ScalarType|\bdtype\b|\bBFloat16\b)|^IndexError: .*out of (?:bounds|range) for (?:axis|dimension)",
         "Tensors of shapes or types that do not fit meet.", "Print shapes and types at the line named in the traceback."),
    Rule("told-data", "data_error", 2,
         rf"{_SAID}\b(?:[Dd]ata ?(?:sets?|files?)|[Ss]hards?|[Rr]ecords?|jsonl?|csv|[Pp]arquet|tar|[Ii]mages?|[Vv]ideos?|[Aa]udio|[Ll]abels?|[Cc]orpus|[Cc]olumns?|[Ss]amples?|annotations?|moov|truncated|[Cc]orrupt\w*|[Dd]ecod(?:e|ing)|mmap|file size|[Bb]ucket|[Bb]lob|hash mismatch|checksum|[Tt]oken(?:s|ized)? file|[Ff]iles? (?:is|are|has|have|ended))\b",
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
