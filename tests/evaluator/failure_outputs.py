"""Outputs of failed runs, written for the tests after the formats of the programs that print them.

Each entry: name of the rule that must explain it, class, output, facts that must be read from it.
"""

MIB, GIB = 2**20, 2**30

OUTPUTS: list[tuple[str, str, str, dict[str, float | str]]] = [
    ("shm-full", "oom_shm", "OSError: [Errno 28] No space left on device: '/dev/shm/torch_77_1'", {"errno": 28}),
    ("shm-full", "oom_shm", "RuntimeError: unable to write to file </torch_812_309>: No space left on device (28) out of shared memory", {}),
    ("shm-nccl", "oom_shm", "n7:12:90 [2] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Qx1 to 9637892 bytes", {"requested_bytes": 9637892}),
    ("shm-bus", "oom_shm", "RuntimeError: DataLoader worker (pid 88) is killed by signal: Bus error.", {}),
    ("gpu-allocator", "gpu_oom",
     "Traceback (most recent call last):\n  File \"t.py\", line 9, in <module>\n    loss.backward()\n"
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 79.10 GiB of which "
     "1.25 GiB is free. Process 411 has 77.80 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and "
     "3.00 GiB is reserved by PyTorch but unallocated.",
     {"requested_bytes": 2.5 * GIB, "free_bytes": 1.25 * GIB, "total_bytes": int(79.1 * GIB), "allocated_bytes": 70 * GIB,
      "unallocated_bytes": 3 * GIB, "gpu": 1}),
    ("gpu-allocator", "gpu_oom",
     "RuntimeError: CUDA out of memory. Tried to allocate 514.00 MiB (GPU 0; 7.79 GiB total capacity; 5.50 GiB already allocated; "
     "200.50 MiB free; 6.10 GiB reserved in total by PyTorch)",
     {"requested_bytes": 514 * MIB, "free_bytes": 200.5 * MIB, "allocated_bytes": 5.5 * GIB, "gpu": 0}),
    ("gpu-allocator", "gpu_oom",
     "RuntimeError: MPS backend out of memory (MPS allocated: 8.50 GB, other allocations: 384.00 KB, max allowed: 9.00 GB). Tried to allocate 256.00 MB on private pool.",
     {"requested_bytes": 256 * MIB, "allocated_bytes": 8.5 * GIB, "total_bytes": 9 * GIB}),
    ("gpu-runtime", "gpu_oom", "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", {}),
    ("gpu-nccl", "gpu_oom", "a1:3:4 [5] include/alloc.h:99 NCCL WARN Failed to CUDA malloc 33554432 bytes", {"requested_bytes": 33554432, "local_rank": 5}),
    ("gpu-library", "gpu_oom", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", {}),
    ("gpu-xla", "gpu_oom", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", {"requested_bytes": 8 * GIB}),
    ("gpu-cache", "gpu_oom", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", {}),
    ("host-cgroup", "host_oom_killed", "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.\nsrun: error: n1: task 3: Out Of Memory", {}),
    ("host-cgroup", "host_oom_killed", "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137", {}),
    ("host-cgroup", "host_oom_killed", "[8.1] Memory cgroup out of memory: Killed process 901 (python) total-vm:88kB, anon-rss:70kB", {}),
    ("host-ray", "host_oom_killed", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", {}),
    ("host-allocator", "host_oom_killed", "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)", {"requested_bytes": 4 * GIB}),
    ("host-numpy", "host_oom_killed", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64", {"requested_bytes": int(7.45 * GIB)}),
    ("host-numpy", "host_oom_killed", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.50 PiB for an array with shape (211106232532992,) and data type float64", {"requested_bytes": 3 * 2**49}),
    ("host-rust", "host_oom_killed", "memory allocation of 1048576 bytes failed\nAborted (core dumped)", {"requested_bytes": MIB}),
    ("host-mmap", "host_oom_killed", "RuntimeError: unable to mmap 262144 bytes from file <filename not specified>: Cannot allocate memory (12)", {"requested_bytes": 262144}),
    ("host-errno", "host_oom_killed", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc", {}),
    ("host-errno", "host_oom_killed", "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    x = [0] * 10**12\nMemoryError", {}),
    ("host-worker", "host_oom_killed", "RuntimeError: DataLoader worker (pid(s) 12, 13) is killed by signal: Killed.", {}),
    ("host-sigkill", "host_oom_killed", "step 3 loss 4.1\n/bin/run.sh: line 4:  9112 Killed                  python train.py", {}),
    ("host-sigkill", "host_oom_killed", "[launch.py:315] [ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = -9", {}),
    ("host-sigkill", "host_oom_killed", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 55)\n  traceback : Signal 9 (SIGKILL) received by PID 55", {"signal": 9}),
    ("host-pinned", "host_oom_killed", "  File \"offload.py\", line 40, in __init__\n    self.buffer = torch.empty(size).pin_memory()\nRuntimeError: CUDA error: out of memory", {}),
    ("evicted-memory", "host_oom_killed", "  Reason:   Evicted\n  Message:  The node was low on resource: memory. Container job was using 31Gi, request is 4Gi.", {}),
    ("evicted-disk", "disk_full", "Warning  Evicted  3m  kubelet  Pod ephemeral local storage usage exceeds the total limit: ephemeral storage 20Gi", {}),
    ("node-lost", "preempted", "The node with node id 1f2e has been marked dead because the detector has missed too many heartbeats from it.", {}),
    ("network", "collective_timeout", "h2:31:77 [1] transport/net_ib.cc:99 NCCL WARN NET/IB : Got async event : port error", {"local_rank": 1, "host": "h2"}),
    ("refused-setting", "bad_config", "ValueError: attn_implementation must be one of eager, sdpa; got flesh", {}),
    ("not-scheduled", "bad_config", "srun: error: Unable to allocate resources: Invalid account or account/partition combination specified", {}),
    ("disk-full", "disk_full", "OSError: [Errno 28] No space left on device", {"errno": 28}),
    ("file-limit", "disk_full", "OSError: [Errno 27] File too large", {"errno": 27}),
    ("disk-write", "disk_full", "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 640 vs 534", {}),
    ("device-ecc", "device_fault", "kernel: NVRM: Xid (PCI:0000:b1:00): 79, pid=77, GPU has fallen off the bus.\nRuntimeError: CUDA error: unspecified launch failure", {}),
    ("device-busy", "device_fault", "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", {}),
    ("device-driver", "device_fault", "Failed to initialize NVML: Driver/library version mismatch", {}),
    ("device-access", "device_fault", "RuntimeError: CUDA error: an illegal memory access was encountered", {}),
    ("denied", "permission", "PermissionError: [Errno 13] Permission denied: '/srv/out/model.pt'", {"errno": 13}),
    ("time-limit", "hang_or_timeout", "step 5\nslurmstepd: error: *** JOB 9 ON n4 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***", {}),
    ("preempted", "preempted", "slurmstepd: error: *** STEP 4.0 ON n4 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***", {}),
    ("preempted", "preempted", "Status: Failed\nReason: Evicted\nMessage: The node was low on priority", {}),
    ("ended-outside", "preempted", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 31 got signal: 15", {"signal": 15}),
    ("interrupted", "hang_or_timeout", "step 4 loss 3.0\n^CTraceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nKeyboardInterrupt", {}),
    ("gave-up", "hang_or_timeout", "RuntimeError: DataLoader timed out after 30 seconds", {}),
    ("port-taken", "collective_setup", "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29511, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", {"port": 29511, "errno": 98}),
    ("duplicate-gpu", "collective_setup", "Last error:\nDuplicate GPU detected : rank 5 and rank 1 both on CUDA device 1b000", {}),
    ("no-interface", "collective_setup", "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth7", {}),
    ("ranks-missing", "collective_setup", "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.", {}),
    ("ranks-missing", "collective_setup", "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable MASTER_ADDR expected, but not set", {}),
    ("ranks-missing", "collective_setup", "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by store->get('0'), but store->get('0') got error: Socket Timeout", {}),
    ("no-group", "collective_setup", "ValueError: Default process group has not been initialized, please make sure to call init_process_group.", {}),
    ("nccl-setup", "collective_setup", "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, unhandled system error\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.", {}),
    ("barrier", "collective_timeout", "[E] Rank 0: monitoredBarrier\nRuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms", {"timeout_ms": 30000, "missing_ranks": "1, 3"}),
    ("watchdog", "collective_timeout", "[rank5]:[E ProcessGroupNCCL.cpp:563] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, OpType=BROADCAST, NumelIn=4, NumelOut=4, Timeout(ms)=900000) ran for 900217 milliseconds before timing out.\nterminate called after throwing an instance of 'std::runtime_error'", {"seq_num": 88, "op": "BROADCAST", "timeout_ms": 900000, "ran_ms": 900217, "rank": 5}),
    ("wait-timeout", "collective_timeout", "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", {"timeout_ms": 1800000}),
    ("heartbeat", "collective_timeout", "[rank1]:[F] [PG 0 Rank 1] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives.", {}),
    ("loss-scale", "nan_or_divergence", "FloatingPointError: Minimum loss scale reached (0.001). Your loss is probably exploding.", {"loss_scale_min": 0.001}),
    ("nan", "nan_or_divergence", "Loss is nan, stopping training", {}),
    ("nan", "nan_or_divergence", "AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel communication collective.", {}),
    ("nan", "nan_or_divergence", "RuntimeError: Function 'LogSoftmaxBackward0' returned nan values in its 0th output.", {}),
    ("nan", "nan_or_divergence", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", {}),
    ("nan-line", "nan_or_divergence", "step 1 loss 8.1\nstep 2 loss nan\nstep 3 loss nan", {}),
    ("device-index", "shape_or_dtype_error", "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectSmallIndex: block: [3,0,0], thread: [9,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: device-side assert triggered", {}),
    ("device-assert", "shape_or_dtype_error", "RuntimeError: CUDA error: device-side assert triggered", {}),
    ("dtype", "shape_or_dtype_error", "RuntimeError: expected scalar type Float but found BFloat16", {"dtype_a": "Float", "dtype_b": "BFloat16"}),
    ("dtype", "shape_or_dtype_error", "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'", {}),
    ("shape", "shape_or_dtype_error", "  File \"m.py\", line 4, in forward\n    return self.fc(x)\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (8x64 and 32x10)", {}),
    ("shape", "shape_or_dtype_error", "RuntimeError: The size of tensor a (5) must match the size of tensor b (7) at non-singleton dimension 1", {}),
    ("shape", "shape_or_dtype_error", "IndexError: index out of range in self", {}),
    ("state-dict", "checkpoint_error", "RuntimeError: Error(s) in loading state_dict for GPT:\n\tsize mismatch for head.weight: copying a param with shape torch.Size([9, 4]) from checkpoint, the shape in current model is torch.Size([8, 4]).", {}),
    ("checkpoint-file", "checkpoint_error",
     "Traceback (most recent call last):\n  File \"train.py\", line 80, in main\n    state = torch.load(args.load)\n"
     "  File \"torch/serialization.py\", line 1568, in load\n    with _open_zipfile_reader(opened_file) as opened_zipfile:\n"
     "  File \"torch/serialization.py\", line 807, in __init__\n    super().__init__(torch._C.PyTorchFileReader(name_or_buffer))\n"
     "OSError: [Errno 22] Invalid argument", {}),
    ("checkpoint-file", "checkpoint_error", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", {}),
    ("checkpoint-file", "checkpoint_error", "FileNotFoundError: [Errno 2] No such file or directory: 'runs/a/step_40.ckpt'", {"errno": 2}),
    ("missing-native", "missing_dependency", "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory", {}),
    ("missing-module", "missing_dependency", "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nModuleNotFoundError: No module named 'apex'", {}),
    ("missing-tool", "missing_dependency", "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx", {}),
    ("missing-tool", "missing_dependency", "AssertionError: Torch not compiled with CUDA enabled", {}),
    ("kernel-resources", "compile_failure", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 180224, Hardware limit: 166912. Reducing block sizes or `num_stages` may help.", {"required_smem_bytes": 180224, "limit_smem_bytes": 166912}),
    ("native-build", "compile_failure", "nvcc fatal   : Unsupported gpu architecture 'compute_120'", {"arch": "compute_120"}),
    ("native-build", "compile_failure", "RuntimeError: Error building extension 'fused_adam': [1/2] c++ -MMD", {}),
    ("torch-compile", "compile_failure", "torch._dynamo.exc.Unsupported: Data-dependent branching\n  from user code:\n   File \"t.py\", line 3, in f", {}),
    ("arguments", "bad_config", "usage: t.py [-h] [--steps STEPS]\nt.py: error: argument --steps: invalid int value: 'many'", {}),
    ("config-file", "bad_config", "omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct", {}),
    ("batch-arithmetic", "bad_config", "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 16 != 2 * 3 * 2", {}),
    ("batch-arithmetic", "bad_config", "RuntimeError: CUDA error: invalid device ordinal", {}),
    ("config-assert", "bad_config", "Traceback (most recent call last):\n  File \"t.py\", line 9, in <module>\n    assert config.n_embd % config.n_head == 0\nAssertionError", {}),
    ("many-files", "bad_config", "OSError: [Errno 24] Too many open files", {"errno": 24}),
    ("data", "data_error", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", {}),
    ("data", "data_error", "PIL.UnidentifiedImageError: cannot identify image file 'a.jpg'", {}),
    ("no-file", "data_error", "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'", {"errno": 2}),
    ("autograd", "code_error", "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation", {}),
    ("syntax", "code_error", "  File \"train.py\", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax", {}),
    ("programming", "code_error", "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\", line 2, in <module>\n[rank1]:     step(mdl)\n[rank1]: NameError: name 'mdl' is not defined", {"rank": 1}),
    ("segfault", "segfault", "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):", {}),
    ("segfault", "segfault", "double free or corruption (!prev)\nAborted (core dumped)", {}),
    ("bus-error", "oom_shm", "step 2\nBus error (core dumped)", {}),
    ("peer-gone", "unknown", "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.1.1]:40112", {}),
    ("worker-gone", "unknown", "subprocess.CalledProcessError: Command 'python train.py' returned non-zero exit status 1.", {}),
    ("abort", "unknown", "Aborted (core dumped)", {}),
    ("other-exception", "unknown", "botocore.exceptions.WeirdThingError: seven", {}),
]  # fmt: skip

MIXED: list[tuple[str, str, str]] = [
    (
        "other ranks only notice that one ran out of memory",
        "gpu_oom",
        "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000)\n"
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
        "RuntimeError: Connection closed by peer\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  exitcode : 1 (pid: 3)",
    ),
    (
        "a launcher's wrapper comes after the program's own error",
        "code_error",
        "Traceback (most recent call last):\n  File \"t.py\", line 2, in <module>\nAttributeError: 'GPT' object has no attribute 'hed'\n"
        "E0101 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 5)\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ),
    (
        "the last exception is raised while the first is handled",
        "checkpoint_error",
        "Traceback (most recent call last):\nRuntimeError: PytorchStreamReader failed reading zip archive: invalid header\n\n"
        "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        "TypeError: 'NoneType' object is not subscriptable",
    ),
    (
        "colours and progress bars hide the line",
        "disk_full",
        " 10%|█         | 1/10\r 20%|██        | 2/10\r\x1b[31mOSError: [Errno 28] No space left on device\x1b[0m",
    ),
    (
        "a compiler that is not installed is no compile failure",
        "missing_dependency",
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    ),
    (
        "a shape error inside a compiled graph is a shape error",
        "shape_or_dtype_error",
        "torch._dynamo.exc.TorchRuntimeError: Failed running call_function <built-in function linear>:\na and b must have same reduction dim\n"
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)",
    ),
]
