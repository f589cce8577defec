"""Numbers: loss and gradients, shapes and types."""

from __future__ import annotations

from rsi_tui.evaluator.failure_rules.rule import Rule

NUMBERS = (
    Rule("loss-scale", "nan_or_divergence", 0, r"[Ll]oss scale already at minimum|Minimum loss scale reached(?: \((?P<loss_scale_min>[\d.e-]+)\))?",
         "Gradients overflowed at every loss scale: training diverged.", "Lower the learning rate, lengthen warm-up, or use bf16 instead of fp16."),
    Rule("nan", "nan_or_divergence", 0, r"found NaN|(?:[Ll]oss|[Gg]rad\w*|cost|norm)\b[^.]{0,40}\b(?:is|are|became|was|contains?) (?:a )?(?:nan|NaN|inf|not finite|non-?finite)|returned nan values|non-finite (?:loss|grad|norm)|NaN or [Ii]nf|NaN (?:loss|detected|encountered)|contains either `?inf`?, `?nan|invalid values:.*nan|satisfy the constraint .*found invalid values|[Ll]oss\b.{0,20}\b(?:exploded|diverged)|FloatingPointError|Input contains NaN|Unexpected result nan|[Tt]raining (?:has )?diverged|DivergenceError",
         "Loss or gradients are no longer finite.", "Lower the learning rate, clip gradients, and look at the last finite steps."),
    Rule("nan-line", "nan_or_divergence", 3, r"\b(?:\w*_)?loss['\"]?\s*[=:|]?\s*(?:tensor\()?[-+]?(?:nan|inf)\b",
         "The loss is no longer finite.", "Lower the learning rate, clip gradients, and look at the last finite steps."),
    Rule("device-index", "shape_or_dtype_error", 0, r"Assertion `[^`]*(?:[iI]ndex|dst|idx|t >= 0|target|label|n_classes|< size)[^`]*` failed|indexSelect\w*Index|ScatterGatherKernel.*Assertion|Loss\.cu.*Assertion",
         "An index lies outside its table: a token, label or position is too large.", "Check vocabulary, number of classes and sequence length."),
    Rule("device-assert", "shape_or_dtype_error", 2, r"device-side assert triggered|cudaErrorAssert",
         "An assertion in a GPU kernel failed, most often an index outside its table.", "Run on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to see which."),
    Rule("dtype", "shape_or_dtype_error", 1, r"to have the same dtype|expected scalar type \w+ but found|Input type \(.*\) and (?:weight|bias) type|not implemented for '?(?:Half|BFloat16|Long|Int|Bool|Float8\w*)|result type .* can't be cast|to have one of the following scalar types|dtype mismatch|must have the same dtype|[Ee]xpected .* dtype|Found dtype \w+ but expected \w+|Only Tensors of floating point|mismatched? dtypes?|(?:should|must) have the same dtype|requires .*dtypes? (?:to )?match|[Oo]nly supports? [\w, ]{2,40} data ?types?|[Uu]nsupported (?:data type|dtype)|incompatible (?:data )?types? .*dtype",
         "Tensors of different types meet.", "Cast one side, or put the operation under autocast."),
    Rule("shape", "shape_or_dtype_error", 1, r"shapes? cannot be multiplied|must match the (?:existing )?size|is invalid for input of size|Sizes of tensors must match|to match target batch_size|weight of size .* expected input|expects each tensor to be equal size|size mismatch, m1|doesn't match the broadcast shape|view size is not compatible|could not (?:be )?broadcast|inconsistent (?:tensor )?size|same number of dimensions|[Dd]imension out of range|expand\(.*\): the (?:number|expanded)|expects (?:split_sizes|input|at least)|einsum\(\)|expected (?:\d+D|.*\d+-?[dD]imensional)|[Tt]arget \S+ is out of bounds|index out of range in self|Expected (?:size|target size|tensor to have size|input to have)|[Ss]hape mismatch|tensor sizes? mismatch|incompatible (?:tensor )?shapes?|mat1 and mat2|batch1 tensor|selected index k out of range|invalid shape|[Mm]ismatch in shape|not match the shape|batch\w* size mismatch|requires contracting dimensions|[Ii]ncompatible shapes|ParamShapeError|must have (?:the same|matching) (?:shape|size|length|number of)|do(?:es)?n.t match in size|shapes? \S+ and \S+ not aligned|[Ii]ncompatible dimensions",
         "Tensors of shapes that do not fit meet.", "Print the shapes at the line named in the traceback."),
)  # fmt: skip
