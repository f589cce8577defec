"""Changes that make a bundled workload fail, each in one way that is known beforehand.

Each is a patch of `train.py`: code before the first step, or in step 3. A patch that no longer fits the source raises
ValueError, so that the count of failures is never smaller than it says.
"""

from __future__ import annotations

from dataclasses import dataclass

from rsi_tui.journal.facts import Outcome

BEFORE, IN_STEP, AFTER = "    model.train()\n", "        x, y = batches[step]\n", "    save(os.path.join(args.out"
RANKS = """

def _rank(rank, port, wait, how):
    import datetime
    import torch.distributed as dist

    group = dict(world_size=2, timeout=datetime.timedelta(seconds=wait))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, **group)
    for step in range(3):
        if rank == 1 and step == 2:
            how()
        dist.all_reduce(torch.ones(4))


def _raises():
    raise ValueError("rank 1 read a batch that it can't use")


def _sleeps():
    import time

    time.sleep(300)


def _leaves():
    os._exit(3)


"""


@dataclass(frozen=True)
class Failure:
    """One way to fail."""

    name: str
    code: str
    """what is inserted, without indentation"""
    outcome: Outcome
    causes: tuple[str, ...]
    """classes that are right"""
    where: str = BEFORE
    module: str = ""
    """what is put before `main`"""

    def patch(self, source: str) -> str:
        """The source of `train.py` with the failure in it. Raises ValueError where it does not fit."""
        indent = " " * (len(self.where) - len(self.where.lstrip()))
        guard = f"{indent}if step == first_step + 3:\n" if self.where == IN_STEP else ""
        inner = f"{indent}    " if guard else indent
        code = guard + "".join(f"{inner}{line}\n" for line in self.code.splitlines())
        if source.count(self.where) != 1 or source.count("\ndef main():") != 1:
            raise ValueError(f"{self.name} does not fit train.py")
        after = self.where if self.where == IN_STEP else ""
        before = self.where if self.where != IN_STEP else ""
        changed = source.replace(self.where, f"{after}{code}{before}")
        return changed.replace("\ndef main():", f"{self.module}\ndef main():") if self.module else changed


def _ranks(how: str, wait: int = 60) -> str:
    return f"import torch.multiprocessing as mp\nmp.spawn(_rank, args=(29511, {wait}, {how}), nprocs=2)"


FAILURES = (
    # --- memory
    Failure("one tensor larger than the limit", "grown = torch.ones(2**30)", "oom", ("host_oom_killed",)),
    Failure("a list of tensors that is never emptied", "kept = []\nwhile True:\n    kept.append(torch.ones(2**22))", "oom", ("host_oom_killed",), IN_STEP),
    Failure("an allocation no machine could serve", "torch.empty(2**46)", "oom", ("host_oom_killed", "gpu_oom"), IN_STEP),
    Failure("Python text of eight gigabytes", "text = 'x' * 2**33", "oom", ("host_oom_killed",)),
    Failure("a data worker that is killed for memory",
            "class Large(torch.utils.data.Dataset):\n    def __len__(self):\n        return 8\n\n    def __getitem__(self, at):\n"
            "        return torch.ones(2**30)\n\nnext(iter(torch.utils.data.DataLoader(Large(), num_workers=1)))",
            "oom", ("host_oom_killed",)),
    Failure("numpy asks for a petabyte", "import numpy as np\nnp.ones((2**47,))", "oom", ("host_oom_killed",)),
    # --- time
    Failure("asleep in a step", "import time\ntime.sleep(10000)", "timeout", ("hang_or_timeout",), IN_STEP),
    Failure("a lock taken twice before the first step", "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
            "timeout", ("hang_or_timeout",)),
    Failure("a loop without end", "while True:\n    pass", "timeout", ("hang_or_timeout",), IN_STEP),
    # --- signals
    Failure("killed by itself with SIGKILL", "import signal\nos.kill(os.getpid(), signal.SIGKILL)", "crashed", ("unknown",), IN_STEP),
    Failure("ended by itself with SIGTERM", "import signal\nos.kill(os.getpid(), signal.SIGTERM)", "crashed", ("unknown",), IN_STEP),
    Failure("a null pointer read", "import ctypes\nctypes.string_at(0)", "crashed", ("segfault",), IN_STEP),
    Failure("exit without a word", "os._exit(7)", "crashed", ("unknown",), IN_STEP),
    # --- flags and configuration
    Failure("a required flag that nobody gives", "p = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args([])",
            "crashed", ("bad_config",)),
    Failure("a flag unknown to the program", "argparse.ArgumentParser().parse_args(['--fused-adam'])", "crashed", ("bad_config",)),
    Failure("a value outside the choices", "p = argparse.ArgumentParser()\np.add_argument('--dtype', choices=['fp32'])\np.parse_args(['--dtype', 'fp8'])",
            "crashed", ("bad_config",)),
    # --- broken patches
    Failure("a name that is not defined", "fused_step(model)", "crashed", ("code_error",), IN_STEP),
    Failure("a method that is not there", "optimizer.fused_step()", "crashed", ("code_error",), IN_STEP),
    Failure("too many arguments", "get_lr(step, 1)", "crashed", ("code_error",), IN_STEP),
    Failure("an in-place change of what autograd needs",
            "w = torch.ones(3, requires_grad=True)\nv = w.exp()\nv.mul_(2)\nv.sum().backward()", "crashed", ("code_error",), IN_STEP),
    Failure("backward twice through one graph", "w = torch.ones(3, requires_grad=True)\nv = (w * w).sum()\nv.backward()\nv.backward()",
            "crashed", ("code_error",), IN_STEP),
    Failure("a data worker that raises",
            "class Broken(torch.utils.data.Dataset):\n    def __len__(self):\n        return 8\n\n    def __getitem__(self, at):\n"
            "        return self.rows[at]\n\nnext(iter(torch.utils.data.DataLoader(Broken(), num_workers=1)))",
            "crashed", ("code_error",)),
    Failure("recursion without end", "def deeper():\n    return deeper()\n\ndeeper()", "crashed", ("code_error",)),
    Failure("inner dimensions that differ", "torch.ones(4, 8) @ torch.ones(4, 8)", "crashed", ("shape_or_dtype_error",), IN_STEP),
    Failure("two dtypes in one product", "torch.ones(4, 8) @ torch.ones(8, 4, dtype=torch.bfloat16)", "crashed", ("shape_or_dtype_error",), IN_STEP),
    Failure("a view that does not fit", "torch.ones(4, 8).view(5, 7)", "crashed", ("shape_or_dtype_error",), IN_STEP),
    # --- dependencies, compilers
    Failure("a package that is not installed", "import flash_attn", "crashed", ("missing_dependency",)),
    Failure("a shared library that is not there", "import ctypes\nctypes.CDLL('libnccl.so.99')", "crashed", ("missing_dependency",)),
    Failure("a backend of the compiler that fails",
            "def backend(graph, inputs):\n    raise RuntimeError('this graph can not be lowered')\n\ntorch.compile(lambda v: v + 1, backend=backend)(torch.ones(3))",
            "crashed", ("compile_failure",)),
    Failure("no C++ compiler for the compiled graph",
            "import torch._inductor.config as inductor\ninductor.cpp.cxx = ('/nonexistent/g++',)\ntorch.compile(lambda v: (v + 1).relu())(torch.ones(3000))",
            "crashed", ("compile_failure", "missing_dependency")),
    # --- data, checkpoints, files
    Failure("a data file that is not there", "open('data/shard_00007.bin', 'rb')", "crashed", ("data_error",)),
    Failure("a data file that is no JSON",
            "import json\nopen(args.out + '/train.jsonl', 'w').write('{\"text\": ')\njson.loads(open(args.out + '/train.jsonl').read())",
            "crashed", ("data_error",)),
    Failure("weights that lack a tensor", "model.load_state_dict({})", "crashed", ("checkpoint_error",)),
    Failure("a checkpoint cut short",
            "path = args.out + '/old.pt'\ntorch.save(model.state_dict(), path)\nwith open(path, 'r+b') as file:\n    file.truncate(5000)\ntorch.load(path)",
            "crashed", ("checkpoint_error",)),
    Failure("no checkpoint at the end", "return", "crashed", ("checkpoint_error",), AFTER),
    Failure("a file outside its folders", "open('/usr/lib/rsi.txt', 'w')", "crashed", ("permission",)),
    Failure("a disk that is full", "with open(args.out + '/all.bin', 'wb') as file:\n    while True:\n        file.write(bytes(2**24))",
            "crashed", ("disk_full",)),
    # --- divergence
    Failure("a learning rate far too high", "for group in optimizer.param_groups:\n    group['lr'] = 1e30", "diverged", ("nan_or_divergence",), IN_STEP),
    Failure("weights that are not numbers", "with torch.no_grad():\n    next(model.parameters()).fill_(float('nan'))", "diverged", ("nan_or_divergence",), IN_STEP),
    Failure("a check that finds NaN and stops",
            "huge = torch.tensor(1e30) * 1e30\nif not torch.isfinite(huge - huge):\n"
            "    raise RuntimeError(f'Loss is {(huge - huge).item()} at step {step}, stopping training')",
            "diverged", ("nan_or_divergence",), IN_STEP),
    # --- several ranks
    Failure("a rank that raises", _ranks("_raises"), "crashed", ("code_error",), module=RANKS),
    Failure("a rank that waits for another in vain", _ranks("_sleeps", 4), "timeout", ("collective_timeout",), module=RANKS),
    Failure("a rank that is gone", _ranks("_leaves"), "crashed", ("unknown", "code_error", "collective_timeout"), module=RANKS),
    Failure("a port that is taken",
            "import socket\nimport torch.distributed as dist\ntaken = socket.create_server(('127.0.0.1', 29512))\n"
            "dist.init_process_group('gloo', init_method='tcp://127.0.0.1:29512', rank=0, world_size=1)",
            "crashed", ("collective_setup",)),
    Failure("no address of the master",
            "import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=2)", "crashed", ("collective_setup",)),
    Failure("a master that does not answer",
            "import datetime\nimport torch.distributed as dist\ndist.init_process_group('gloo', init_method='tcp://127.0.0.1:29513', rank=1, "
            "world_size=2, timeout=datetime.timedelta(seconds=4))", "crashed", ("collective_setup",)),
)  # fmt: skip
"""of a program that prints a line a step and writes its weights in the end"""
