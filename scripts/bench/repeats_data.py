"""Ideas that failed, each told again in other words and with its diff edited, and ideas that are new: what the gate must tell apart.

A change is (path, lines removed, lines added).
"""

from __future__ import annotations

from dataclasses import dataclass

Change = tuple[str, str, str]


@dataclass(frozen=True)
class Failed:
    """One idea of the past, and its two disguises."""

    statement: str
    change: Change
    again: str
    """the same idea as somebody else would put it"""
    edited: Change
    """the same change with other names, layout, comments or order"""


@dataclass(frozen=True)
class New:
    """An idea that was not tried."""

    statement: str
    change: Change


def diff_of(change: Change, line: int = 40) -> str:
    """A unified diff of one hunk."""
    path, old, new = change
    removed, added = [x for x in old.split("\n") if x.strip()], [x for x in new.split("\n") if x.strip()]
    hunk = [f"@@ -{line},{len(removed)} +{line},{len(added)} @@", *(f"-{x}" for x in removed), *(f"+{x}" for x in added)]
    return "\n".join([f"--- a/{path}", f"+++ b/{path}", *hunk]) + "\n"


FAILED = (
    Failed(
        "Caching the causal mask as a buffer avoids building it anew in every forward pass of attention",
        ("model.py", "        mask = torch.tril(torch.ones(T, T, device=x.device))", "        mask = self.causal_mask[:T, :T]\n        # made once in __init__\n    def _make(self):\n        self.register_buffer('causal_mask', torch.tril(torch.ones(1024, 1024)))"),
        "Build the lower-triangular attention mask a single time and keep it on the module instead of recreating it each call",
        ("model.py", "        mask = torch.tril(torch.ones(T, T, device=x.device))", "        m = self.tri[:T, :T]\n    def _init_tri(self):\n        # precomputed lower triangle\n        self.register_buffer('tri', torch.tril(torch.ones(1024, 1024)), persistent=False)"),
    ),
    Failed(
        "Merging the three projections for query, key and value into one matrix product saves kernel launches",
        ("model.py", "        q, k, v = self.q(x), self.k(x), self.v(x)", "        q, k, v = self.qkv(x).split(self.width, dim=-1)\n        self.qkv = nn.Linear(width, 3 * width, bias=False)"),
        "Compute Q, K and V by a single fused linear layer rather than by three separate ones",
        ("model.py", "        q, k, v = self.q(x), self.k(x), self.v(x)", "        packed = self.in_proj(x)  # one GEMM\n        q, k, v = packed.split(self.width, dim=-1)\n        self.in_proj = nn.Linear(width, 3 * width, bias=False)"),
    ),
    Failed(
        "Fetching the loss with .item() only every tenth step takes the host synchronisation out of the step",
        ("train.py", "        print(f'step {step} loss {loss.item():.4f}')", "        if step % 10 == 0:\n            print(f'step {step} loss {loss.item():.4f}')"),
        "Reading the scalar loss back to the CPU less often stops the device from being waited for on each iteration",
        ("train.py", "        print(f'step {step} loss {loss.item():.4f}')", "        LOG_EVERY = 10\n        if step % LOG_EVERY == 0:  # avoid the sync\n            value = loss.item()\n            print(f'step {step} loss {value:.4f}')"),
    ),
    Failed(
        "Storing the rotary tables for cosine and sine in bf16 halves what attention reads of them",
        ("model.py", "        self.cos, self.sin = cos, sin", "        self.cos, self.sin = cos.to(torch.bfloat16), sin.to(torch.bfloat16)"),
        "Keep the sin/cos of the rotary position embedding at half precision so that less memory is moved",
        ("model.py", "        self.cos, self.sin = cos, sin", "        # half precision tables\n        self.rope_cos = cos.to(torch.bfloat16)\n        self.rope_sin = sin.to(torch.bfloat16)"),
    ),
    Failed(
        "Prefetching the next batch in a background thread hides the reading of the memory-mapped file behind the computation",
        ("data.py", "        return next(self.source)", "        self.queue = queue.Queue(maxsize=2)\n        self.thread = threading.Thread(target=self._fill, daemon=True)\n        self.thread.start()\n        return self.queue.get()"),
        "Load upcoming training data asynchronously on another thread while the present step is being computed",
        ("data.py", "        return next(self.source)", "        self.buffer = queue.Queue(maxsize=4)\n        self.worker = threading.Thread(target=self._produce, daemon=True)\n        self.worker.start()\n        # blocks only when the loader is behind\n        return self.buffer.get()"),
    ),
    Failed(
        "Replacing the loop over experts by one batched matrix multiplication keeps the cores busy with larger products",
        ("moe.py", "        for e, expert in enumerate(self.experts):\n            out[idx == e] = expert(x[idx == e])", "        grouped = x[order].view(self.n_experts, capacity, width)\n        hidden = torch.bmm(grouped, self.w1)\n        out[order] = torch.bmm(F.gelu(hidden), self.w2).view(-1, width)"),
        "Run all experts in one bmm over stacked weights instead of calling them one after another",
        ("moe.py", "        for e, expert in enumerate(self.experts):\n            out[idx == e] = expert(x[idx == e])", "        # stack by expert\n        stacked = x[perm].view(self.n_experts, cap, d)\n        h = torch.bmm(stacked, self.up)\n        h = F.gelu(h)\n        out[perm] = torch.bmm(h, self.down).view(-1, d)"),
    ),
    Failed(
        "Switching the optimizer to its fused implementation updates all parameters in one kernel",
        ("train.py", "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)", "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)"),
        "Let AdamW apply its update through the single fused kernel rather than parameter by parameter",
        ("train.py", "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)", "adam_kwargs = dict(fused=True)\nopt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)"),
    ),
    Failed(
        "Recomputing the blocks' activations in the backward pass frees memory for a larger micro-batch",
        ("model.py", "            x = block(x)", "            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"),
        "Do not keep intermediate activations of the transformer layers but evaluate them again during backpropagation, which leaves room for bigger batches",
        ("model.py", "            x = block(x)", "            # trade compute for memory\n            h = torch.utils.checkpoint.checkpoint(layer, h, use_reentrant=False)"),
    ),
    Failed(
        "Computing the cross-entropy over chunks of the sequence never holds all logits at once",
        ("model.py", "        loss = F.cross_entropy(self.lm_head(x).view(-1, V), y.view(-1))", "        total = 0.0\n        for xs, ys in zip(x.split(128, dim=1), y.split(128, dim=1)):\n            total = total + F.cross_entropy(self.lm_head(xs).reshape(-1, V), ys.reshape(-1), reduction='sum')\n        loss = total / y.numel()"),
        "Evaluate the vocabulary loss piece by piece so that the full logits tensor is not materialised",
        ("model.py", "        loss = F.cross_entropy(self.lm_head(x).view(-1, V), y.view(-1))", "        acc = 0.0\n        for h_c, t_c in zip(x.split(256, dim=1), y.split(256, dim=1)):\n            logits = self.lm_head(h_c).reshape(-1, V)  # chunk only\n            acc = acc + F.cross_entropy(logits, t_c.reshape(-1), reduction='sum')\n        loss = acc / y.numel()"),
    ),
    Failed(
        "Averaging gradients over ranks in buckets of 25 MB overlaps the all-reduce with the backward pass",
        ("train.py", "    for p in model.parameters():\n        dist.all_reduce(p.grad)", "    handles = []\n    for bucket in buckets(model, 25 * 2**20):\n        handles.append(dist.all_reduce(bucket.flat, async_op=True))\n    for handle in handles:\n        handle.wait()"),
        "Group gradient tensors into larger messages and launch their reduction asynchronously, so that communication hides behind computation",
        ("train.py", "    for p in model.parameters():\n        dist.all_reduce(p.grad)", "    pending = []\n    for b in make_buckets(model, 25 * 2**20):\n        work = dist.all_reduce(b.flat, async_op=True)\n        pending.append(work)\n    # wait for all of them\n    for work in pending:\n        work.wait()"),
    ),
    Failed(
        "Setting gradients to None instead of zeroing them saves one pass over memory",
        ("train.py", "    optimizer.zero_grad(set_to_none=False)", "    optimizer.zero_grad(set_to_none=True)"),
        "Drop the gradient tensors after each update rather than overwrite them with zeros",
        ("train.py", "    optimizer.zero_grad(set_to_none=False)", "    # no memset\n    opt.zero_grad(set_to_none=True)"),
    ),
    Failed(
        "Compiling the whole model with torch.compile fuses elementwise operators into fewer kernels",
        ("train.py", "model = GPT(config)", "model = GPT(config)\nmodel = torch.compile(model, mode='default')"),
        "Hand the network to the TorchInductor compiler so that pointwise operations are merged",
        ("train.py", "model = GPT(config)", "net = GPT(config)\n# inductor\nnet = torch.compile(net, mode='default', fullgraph=False)"),
    ),
    Failed(
        "Sorting tokens by expert before dispatch turns scattered reads into contiguous slices",
        ("moe.py", "        for e in range(E):\n            tokens = x[assignment == e]", "        order = assignment.argsort(stable=True)\n        counts = torch.bincount(assignment, minlength=E)\n        for e, tokens in enumerate(x[order].split(counts.tolist())):"),
        "Arrange the routed tokens in expert order first, such that each expert takes a consecutive range of rows",
        ("moe.py", "        for e in range(E):\n            tokens = x[assignment == e]", "        perm = route.argsort(stable=True)  # group by expert\n        n = torch.bincount(route, minlength=E)\n        parts = x[perm].split(n.tolist())\n        for e, tokens in enumerate(parts):"),
    ),
    Failed(
        "Using a larger number of loader workers keeps the input queue full",
        ("data.py", "loader = DataLoader(dataset, batch_size=bs, num_workers=0)", "loader = DataLoader(dataset, batch_size=bs, num_workers=8, persistent_workers=True)"),
        "More DataLoader processes in parallel, so that training never waits for samples",
        ("data.py", "loader = DataLoader(dataset, batch_size=bs, num_workers=0)", "workers = 8\ntrain_loader = DataLoader(train_set, batch_size=bs, num_workers=8, persistent_workers=True)"),
    ),
    Failed(
        "Dropping the explicit contiguous() copies after transposing the heads spares two copies of the activations a layer",
        ("model.py", "        y = y.transpose(1, 2).contiguous().view(B, T, C)", "        y = y.transpose(1, 2).reshape(B, T, C)"),
        "The heads need not be copied into a dense layout after the transpose: leave the call that makes the tensor contiguous out",
        ("model.py", "        y = y.transpose(1, 2).contiguous().view(B, T, C)", "        # reshape copies only if it has to\n        out = att.transpose(1, 2).reshape(B, T, C)"),
    ),
    Failed(
        "Clipping gradients with the foreach implementation computes all norms in a few calls",
        ("train.py", "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)"),
        "Multi-tensor norm computation in gradient clipping instead of one small operation for every parameter",
        ("train.py", "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "    params = list(net.parameters())\n    torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)"),
    ),
    Failed(
        "Replacing the tanh approximation of GELU by the exact library call removes six elementwise kernels",
        ("model.py", "        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x ** 3)))", "        return F.gelu(x, approximate='tanh')"),
        "Call the built-in GELU kernel where the activation is spelled out as a chain of arithmetic",
        ("model.py", "        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x ** 3)))", "        # fused\n        return torch.nn.functional.gelu(h, approximate='tanh')"),
    ),
    Failed(
        "Freezing the garbage collector after warm-up prevents pauses in the middle of steps",
        ("train.py", "for step in range(steps):", "gc.collect()\ngc.freeze()\ngc.disable()\nfor step in range(steps):"),
        "Turn Python's cyclic garbage collection off once training has started, so that no step is interrupted by it",
        ("train.py", "for step in range(steps):", "import gc\ngc.collect()\ngc.freeze()  # nothing to collect any more\ngc.disable()\nfor it in range(steps):"),
    ),
    Failed(
        "Writing checkpoints in a separate process takes saving off the training loop",
        ("train.py", "        torch.save(model.state_dict(), path)", "        state = {k: v.cpu().clone() for k, v in model.state_dict().items()}\n        multiprocessing.Process(target=torch.save, args=(state, path)).start()"),
        "Save the model state asynchronously in a child process instead of blocking the loop",
        ("train.py", "        torch.save(model.state_dict(), path)", "        # copy, then write elsewhere\n        snapshot = {name: t.cpu().clone() for name, t in model.state_dict().items()}\n        p = multiprocessing.Process(target=torch.save, args=(snapshot, path))\n        p.start()"),
    ),
    Failed(
        "Padding the vocabulary to a multiple of 64 lets the final projection use faster tiles",
        ("model.py", "        self.lm_head = nn.Linear(width, vocab, bias=False)", "        padded = (vocab + 63) // 64 * 64\n        self.lm_head = nn.Linear(width, padded, bias=False)"),
        "Round the number of tokens in the output layer up to a multiple of sixty-four for better GEMM shapes",
        ("model.py", "        self.lm_head = nn.Linear(width, vocab, bias=False)", "        n_out = (n_vocab + 63) // 64 * 64  # aligned\n        self.head = nn.Linear(width, n_out, bias=False)"),
    ),
)

NEW = (
    New("Scaled-dot-product attention avoids writing the score matrix to memory", ("model.py", "        att = (q @ k.transpose(-2, -1)) * scale\n        att = att.softmax(-1)\n        y = att @ v", "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)")),
    New("Only the last position's logits are needed while generating samples for the log", ("train.py", "        logits = model(tokens)", "        logits = model(tokens, last_only=True)")),
    New("Tying the output projection to the embedding halves the parameters the optimizer touches", ("model.py", "        self.lm_head = nn.Linear(width, vocab, bias=False)", "        self.lm_head.weight = self.wte.weight")),
    New("Pinned host memory and non-blocking copies shorten the transfer of each batch", ("data.py", "        return x.to(device)", "        return x.pin_memory().to(device, non_blocking=True)")),
    New("Binding processes to the cores of one memory node avoids remote accesses", ("train.py", "def main():", "def main():\n    os.sched_setaffinity(0, range(rank * 8, rank * 8 + 8))")),
    New("Accumulating over fewer and larger micro-batches amortises launch overhead", ("config.yaml", "micro_batch: 2\ngrad_accum: 8", "micro_batch: 8\ngrad_accum: 2")),
    New("Skipping gradient synchronisation in all but the last accumulation step sends each gradient once", ("train.py", "        loss.backward()", "        with model.no_sync() if micro < accum - 1 else nullcontext():\n            loss.backward()")),
    New("Sharding optimizer state over ranks lowers peak memory", ("train.py", "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)", "optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=args.lr)")),
    New("Capturing the step in a CUDA graph removes launch latency", ("train.py", "    step_fn(x, y)", "    graph = torch.cuda.CUDAGraph()\n    with torch.cuda.graph(graph):\n        step_fn(static_x, static_y)\n    graph.replay()")),
    New("TF32 matrix products use the tensor cores", ("train.py", "torch.manual_seed(seed)", "torch.manual_seed(seed)\ntorch.backends.cuda.matmul.allow_tf32 = True")),
    New("Autocast to bf16 in the forward pass halves activation traffic", ("train.py", "        loss = model(x, y)", "        with torch.autocast('cuda', dtype=torch.bfloat16):\n            loss = model(x, y)")),
    New("A token-bucketed sampler reduces padding in batches", ("data.py", "sampler = RandomSampler(dataset)", "sampler = LengthGroupedSampler(dataset, lengths, bucket=512)")),
    New("Memory-mapping the tokenised corpus avoids reading the whole file at start-up", ("data.py", "tokens = np.fromfile(path, np.uint16)", "tokens = np.memmap(path, np.uint16, mode='r')")),
    New("The router's softmax in fp32 on the selected experts only does less work", ("moe.py", "        probs = logits.float().softmax(-1)\n        w, idx = probs.topk(k)", "        top, idx = logits.topk(k)\n        w = top.float().softmax(-1)")),
    New("Expert weights are distributed over ranks and tokens exchanged by all-to-all", ("moe.py", "        out = self.local_experts(x)", "        dist.all_to_all_single(received, x_sorted, out_splits, in_splits)\n        out = self.local_experts(received)")),
    New("jemalloc instead of glibc's allocator lessens fragmentation", ("run.sh", "python train.py", "LD_PRELOAD=libjemalloc.so.2 python train.py")),
    New("Expandable segments stop the CUDA allocator from fragmenting", ("run.sh", "python train.py", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py")),
    New("In-place residual additions avoid one allocation a block", ("model.py", "        x = x + self.mlp(h)", "        x.add_(self.mlp(h))")),
    New("A fused RMSNorm kernel reads its input once", ("model.py", "        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight", "        return F.rms_norm(x, (x.size(-1),), self.weight, self.eps)")),
    New("Gate and up projection of the SwiGLU block in one matrix product", ("model.py", "        return self.down(F.silu(self.gate(x)) * self.up(x))", "        g, u = self.gate_up(x).chunk(2, dim=-1)\n        return self.down(F.silu(g) * u)")),
    New("Gradient compression to fp16 halves the bytes on the wire", ("train.py", "ddp = DistributedDataParallel(model)", "ddp = DistributedDataParallel(model)\nddp.register_comm_hook(None, default_hooks.fp16_compress_hook)")),
    New("Static graph mode lets DDP schedule its reductions once", ("train.py", "ddp = DistributedDataParallel(model)", "ddp = DistributedDataParallel(model, static_graph=True)")),
    New("Longer Inductor autotuning finds faster templates for the matrix products", ("run.sh", "python train.py", "TORCHINDUCTOR_MAX_AUTOTUNE=1 python train.py")),
    New("Denormal numbers flushed to zero speed up late training on CPUs", ("train.py", "torch.manual_seed(seed)", "torch.manual_seed(seed)\ntorch.set_flush_denormal(True)")),
    New("A learning-rate schedule computed as a table saves Python work each step", ("train.py", "        lr = schedule(step)", "        lr = LR_TABLE[step]")),
    New("Validation on a subset of batches shortens evaluation", ("train.py", "    for x, y in val_loader:", "    for x, y in itertools.islice(val_loader, 8):")),
    New("Grouped-query attention with fewer key heads reads less cache", ("model.py", "        k = k.view(B, T, H, D)", "        k = k.view(B, T, KV, D).repeat_interleave(H // KV, dim=2)")),
    New("Sliding-window attention bounds the work for long sequences", ("model.py", "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)", "        y = flex_attention(q, k, v, block_mask=window_mask)")),
    New("Embedding gradients as sparse tensors touch only the rows in use", ("model.py", "        self.wte = nn.Embedding(vocab, width)", "        self.wte = nn.Embedding(vocab, width, sparse=True)")),
    New("Pipeline parallelism over two nodes halves the weights a node holds", ("train.py", "model = GPT(config)", "stage = PipelineStage(build(config, rank), rank, 2, device)\nschedule = Schedule1F1B(stage, 8)")),
    New("Reading the profile marks only when tracing is on", ("train.py", "        torch.autograd.profiler.record_function('step').__enter__()", "        if TRACE:\n            torch.autograd.profiler.record_function('step').__enter__()")),
    New("Dropout at rate zero is skipped", ("model.py", "        x = self.drop(x)", "        x = self.drop(x) if self.rate > 0 else x")),
    New("The load-balancing loss reuses the counts of the dispatch", ("moe.py", "        fraction = F.one_hot(idx, E).float().mean((0, 1))", "        fraction = counts.float() / counts.sum()")),
    New("Turning anomaly detection off removes checks from every backward call", ("train.py", "torch.autograd.set_detect_anomaly(True)", "torch.autograd.set_detect_anomaly(False)")),
    New("Weights kept in channels-last order suit the convolutions", ("model.py", "model = UNet()", "model = UNet().to(memory_format=torch.channels_last)")),
    New("Shampoo needs fewer steps to the same loss", ("train.py", "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)", "optimizer = Shampoo(model.parameters(), lr=args.lr, precondition_frequency=20)")),
    New("Sequence packing fills each row with several documents", ("data.py", "        row = pad(document, T)", "        row = pack(documents, T)")),
    New("Tokenising ahead of time takes the tokenizer out of the training process", ("data.py", "        ids = tokenizer.encode(text)", "        ids = self.ids[start:end]")),
    New("Huge pages for the parameters lower the number of TLB misses", ("run.sh", "python train.py", "THP_MEM_ALLOC_ENABLE=1 python train.py")),
    New("A smaller capacity factor drops padded rows in the experts", ("moe.py", "capacity = int(1.5 * tokens / E)", "capacity = int(1.05 * tokens / E)")),
)
