"""The network between the nodes of one run, simulated on this machine: namespaces, a switch, links of a given rate.

    node 0: eth0 ──tbf── v0 ┐
                            switch (bridge)        every link carries the rate each way
    node 1: eth0 ──tbf── v1 ┘

One process (the holder) makes all of it in a user, network and mount namespace of its own and waits;
programs join a node through `entry`. Nothing of it can be seen outside, nobody but the nodes is
reachable inside, and the kernel takes all of it away with the last process in it, so that even
kill -9 leaves nothing. It needs no privilege beyond user namespaces.

Where links can't be made (no `ip` or `tc`, a kernel without veth or tbf) the nodes share one network
namespace with nothing but a loopback device, whose rate is not limited: `wiring` says so.

Not promised: latency, loss and contention of a real network; a token bucket lets a burst of
`burst_bytes` through at full speed.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.contract.units import parse_rate
from rsi_tui.errors import SandboxError

FLAG_UNLIMITED = "link: nodes share a loopback device, its rate is not limited"
_PATIENCE_S = 10.0
_LOOPBACK_UP = (
    "import fcntl,socket,struct\n"
    "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
    "fcntl.ioctl(s,0x8914,struct.pack('16sH14x',b'lo',0x49))\n"  # SIOCSIFFLAGS: up, loopback, running
)


@dataclass(frozen=True)
class Wiring:
    """How the nodes of a run are joined on this machine."""

    interface: str
    """network device of a node"""
    master: str
    """address of node 0"""
    why_unlimited: str = ""
    """'' when links have a rate, else what is missing and how to mend it, one sentence"""


SWITCHED = Wiring("eth0", "10.77.0.1")


def rate_bits(link: str) -> float:
    """Bits a second of a contract's `link`; 0 for '' (not limited)."""
    return parse_rate(link) if link else 0.0


def burst_bytes(rate: float) -> int:
    """Bucket of a link: 1 ms of its rate, and never less than the largest packet, 64 KiB and its headers.

    Small, since what a bucket lets through at full speed after each pause is not on the link's rate.
    """
    return max(80 * 1024, int(rate / 8 * 0.001))


@functools.cache
def wiring() -> Wiring:
    """What this machine can do; tried once, 0.1 s. Raises SandboxError where no network namespace is to be had at all."""
    missing = [name for name in ("ip", "tc") if not _tool(name)]
    why = f"{' and '.join(missing)} not found; install iproute2." if missing else ""
    if not why:
        try:
            Network(2, 1e9, SWITCHED).close()
            return SWITCHED
        except SandboxError as error:
            why = f"{error} Load the kernel modules veth, bridge and sch_tbf."
    alone = Wiring("lo", "127.0.0.1", f"Nodes share a loopback device of unlimited rate: {why}")
    Network(2, 0.0, alone).close()
    return alone


class Network:
    """The network of one run, until `close`."""

    def __init__(self, nodes: int, rate: float, wired: Wiring) -> None:
        """Links carry `rate` bits a second each way, 0 for no limit. Raises SandboxError when it can't be made."""
        self.wired = wired
        self.nodes = nodes
        script = _switched(nodes, rate) if wired.interface != "lo" else _loopback()
        command = ["unshare", "--user", "--map-root-user", "--net", "--mount", "/bin/sh", "-ec", script]
        try:
            self._holder = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SandboxError(f"No network for nodes here: {error}; install util-linux.") from None
        assert self._holder.stdout is not None
        said = ""
        while (line := self._holder.stdout.readline()) and line != "ready\n":
            said = line.strip()
        if not line:
            self.close()
            raise SandboxError(f"The network between nodes could not be made ({said or 'no message'}).")
        self._before = self._counted()

    @property
    def flags(self) -> tuple[str, ...]:
        return () if self.wired.interface != "lo" else (FLAG_UNLIMITED,)

    def entry(self, node: int) -> tuple[str, ...]:
        """Words before a command that make it run in the node's network, with no other privilege than before."""
        holder = self._holder.pid
        space = f"/proc/{holder}/root/run/netns/n{node}" if self.wired.interface != "lo" else f"/proc/{holder}/ns/net"
        return (_tool("nsenter"), f"--user=/proc/{holder}/ns/user", "--preserve-credentials", f"--net={space}")

    def sent_bytes(self, node: int) -> int | None:
        """Bytes that a node has sent over its link so far; None where links are not there."""
        if self.wired.interface == "lo":
            return None
        return self._counted().get(f"v{node}", 0) - self._before.get(f"v{node}", 0)

    def close(self) -> None:
        """End the holder; what still runs in the network keeps it until it ends itself."""
        for stream in (self._holder.stdin, self._holder.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._holder.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()

    def _counted(self) -> dict[str, int]:
        """Bytes that the switch got through each of its ports."""
        with contextlib.suppress(OSError):
            rows = Path(f"/proc/{self._holder.pid}/net/dev").read_text().splitlines()[2:]
            return {name.strip(): int(rest.split()[0]) for name, rest in (row.split(":", 1) for row in rows)}
        return {}


@functools.cache
def _tool(name: str) -> str:
    """Absolute path of a system program, '' when it is not installed."""
    return shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin") or ""


def _switched(nodes: int, rate: float) -> str:
    """The holder's script: one namespace a node, each joined to a bridge by a pair of devices."""
    lines = [
        "mount -t tmpfs none /run",
        "mkdir /run/netns",
        "ip link add name switch type bridge",
        "ip link set switch up",
        "ip link set lo up",
    ]
    for node in range(nodes):
        lines += [
            f"ip netns add n{node}",
            f"ip link add v{node} type veth peer name eth0 netns n{node}",
            f"ip link set v{node} master switch",
            f"ip -n n{node} link set lo up",
            f"ip -n n{node} addr add 10.77.{(node + 1) // 256}.{(node + 1) % 256}/16 dev eth0",
        ]
        if rate:
            bucket = f"root tbf rate {int(rate)}bit burst {burst_bytes(rate)} latency 50ms"
            lines += [f"tc qdisc add dev v{node} {bucket}", f"tc -n n{node} qdisc add dev eth0 {bucket}"]
        lines += [f"ip -n n{node} link set eth0 up", f"ip link set v{node} up"]
    return "\n".join([*lines, _WAIT])


def _loopback() -> str:
    return f"python3 -I -S -c \"{_LOOPBACK_UP}\" || ip link set lo up\n{_WAIT}"


_WAIT = "echo ready\nread -r _ || true"
"""until the other end of the pipe is gone, however that came about"""
