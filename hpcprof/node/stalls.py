"""The stall watch of a node: notices that no rank makes progress, gathers evidence, and may end the run.

1. Every few seconds, sample each rank of the node: steps and collectives done, CPU time, data moved.
2. Note progress in ``state/pulse/NODE``. Ranks that only poll in MPI, NCCL or CUDA make none.
3. The node of rank 0 calls the run stalled when no node has noted progress for the time limit.
4. Each node then writes the evidence of the kernel, the interpreters, the GPUs and NCCL to ``stall/``.
5. If the job asks for it, and nothing has moved meanwhile, each node ends its processes.
"""

import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

_TICK = os.sysconf("SC_CLK_TCK")
_MIN_PROGRESS_BYTES = 16384
"""Minimum bytes between two samples that count as progress."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BOOT_CLOCK = 7  # time.CLOCK_BOOTTIME of Python 3.7
_START_SECONDS = 10
"""Time in which a process starts, and reads its libraries."""

_BUSY_SHARE = 0.05
"""Minimum share of a CPU for a rank that may compute."""

STACKS_SIGNAL = signal.SIGRTMAX - 5
"""The signal on which the hook of a Python program writes all stacks into memory."""

_STACKS_SECONDS = 1
"""Time that programs have to write their stacks."""

_TOOL_SECONDS = 20
_MAX_TOOLS = 16
_MAX_GATHER_SECONDS = 45
"""Seconds that the nodes have to gather evidence before one of them ends its programs."""

_WAITING_CALL = re.compile(r"/lib(p?mpi[a-z0-9_]*|[nr]ccl|cuda)(-[0-9a-f.]+)?[.]so| P?MPI_[A-Z]")
_THREAD = re.compile(r"TID [0-9]+|Thread .*(LWP|process) [0-9]+|Thread [0-9]+")
_SOURCE_LINE = re.compile(r"    [^ ]+:[0-9]+:[0-9]+$")
_NEUTRAL_FRAME = re.compile(
    r"sysdeps|nptl|/(ld-|lib(c|pthread|gomp|iomp|omp|uc[a-z]|fabric|psm|ibverbs|mlx|pmix|open-|event))"
)
"""Frames of the C library, and of threads of networks and of OpenMP, which tell nothing."""


class RankSample(NamedTuple):
    """The progress of one rank: the state of its hook (`Process.progress`), and counters."""

    state: str
    done: int
    ticks: float
    moved_bytes: int


Sample = Dict[int, RankSample]


def read(path: str) -> bytes:
    """Return the content of a file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def variables_of(pid: int) -> Dict[bytes, bytes]:
    """Return the environment that a process was started with; no names if it cannot be read."""
    return dict(part.partition(b"=")[::2] for part in read("/proc/%d/environ" % pid).split(b"\0"))


class Process:
    """A process of the run on this node, with the environment that it was started with."""

    def __init__(self, pid: int, variables: Dict[bytes, bytes]) -> None:
        self.pid = pid
        self.path = "/proc/%d" % pid
        rank = variables.get(b"HPCPROF_RANK", b"")
        self.rank: Optional[int] = int(rank) if rank.isdigit() else None
        self.is_program = b"HPCPROF_PROGRAM" in variables
        self.is_profiled = variables.get(b"HPCPROF_PROFILER") != b"none"
        self._scratch = os.fsdecode(variables.get(b"TMPDIR", b"")) if self.is_profiled else ""

    def text(self, name: str) -> str:
        """Return one of its files in ``/proc``; empty if it is gone."""
        return read(self.path + "/" + name).decode("utf-8", "replace")

    def progress(self) -> Tuple[str, int]:
        """Return the state of the program, and the number of steps and collectives that have ended.

        The hook writes both into the name of a thread. The state is w in a collective, r outside, u unknown,
        and empty without a hook.
        """
        for path in glob.glob(self.path + "/task/*/comm"):
            name = re.match(rb"hp([rwu])([0-9]+)$", read(path).strip())
            if name:
                return name.group(1).decode(), int(name.group(2))
        return "", 0

    def links(self, *libraries: str) -> bool:
        """Return whether it has a library of MPI, or one of those named, in its memory."""
        names = "|".join((r"p?mpi[a-z0-9_]*", *libraries))
        return re.search(r"/lib(%s)(-[0-9a-f.]+)?\.so" % names, self.text("maps")) is not None

    def awaits_program(self) -> bool:
        """Return whether it is part of a profiler whose program has ended, as its scratch folder says."""
        if self.is_program or not os.path.basename(self._scratch).startswith("hpcprof."):
            return False
        return os.path.exists("%s/root%s/code" % (self.path, self._scratch))

    def stacks_in_memory(self) -> Dict[str, int]:
        """Return the files in memory with its Python stacks, and the bytes of earlier stalls in each.

        A hook with a pulse has written them. Any other hook is asked for them. A fork, which has the file of
        its parent, and a worker of ``multiprocessing`` are not asked: the main process says more.
        """
        status = self.text("status")
        number = re.search(r"^NSpid:.*\b(\d+)$", status, re.MULTILINE)
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
        asks = caught and int(caught.group(1), 16) >> (STACKS_SIGNAL - 1) & 1 and not self.progress()[0]
        asks = asks and "from multiprocessing." not in self.text("cmdline")
        files = {}
        for descriptor in glob.glob(self.path + "/fd/*"):
            with suppress(OSError):
                name = os.readlink(descriptor).partition(" ")[0]
                if name == "/memfd:hpcprof-stack":
                    files[descriptor] = 0
                elif asks and number and name == "/memfd:hpcprof-stack-" + number.group(1):
                    files[descriptor] = len(read(descriptor))
                    self.send(STACKS_SIGNAL)
        return files

    def send(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        with suppress(OSError):
            os.kill(self.pid, number)


def processes(run: str) -> List[Process]:
    """Return the processes of a run on this node."""
    wanted = {b"HPCPROF_RUN_DIR": os.fsencode(run)}
    if "SLURMD_NODENAME" in os.environ:  # Slurm may emulate several nodes on one
        wanted[b"SLURMD_NODENAME"] = os.fsencode(os.environ["SLURMD_NODENAME"])
    marked = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        variables = variables_of(pid)
        if all(variables.get(key) == value for key, value in wanted.items()):
            marked.append(Process(pid, variables))
    return marked


def programs(run: str) -> List[Process]:
    """Return the processes of the program, without those of profilers."""
    return [process for process in processes(run) if process.is_program]


def ended_ranks(run: str, ranks: Iterable[int]) -> Set[int]:
    """Return the ranks that have left an exit code; to list the notes of all nodes would take too long."""
    return {rank for rank in ranks if os.path.exists("%s/state/rank%05d.exit" % (run, rank))}


def waiting_ranks(local: Iterable[Process]) -> Set[int]:
    """Return the ranks whose program has ended, and whose profiler has not."""
    return {process.rank for process in local if process.rank is not None and process.awaits_program()}


def sample(local: Iterable[Process]) -> Sample:
    """Return the progress of each rank that has a process here.

    A tenth of the time for which they could run and had no CPU counts as CPU time: a program that starts on a
    crowded node computes, though it gets little. The start of a process moves no data, so a script that asks
    for a server again and again makes no progress: a parent takes over the bytes that its children read, and
    the faults of pages that each start takes.
    """
    ranks: Sample = {}
    now = time.clock_gettime(_BOOT_CLOCK)
    for process in local:
        fields = process.text("stat").rpartition(") ")[2].split()
        if process.rank is None or len(fields) < 20:
            continue
        queued = process.text("schedstat").split()
        ticks = sum(map(int, fields[11:15])) + (int(queued[1]) / 1e10 * _TICK if len(queued) > 1 else 0.0)
        moved = sum(map(int, re.findall(r"^[rw]char: (\d+)", process.text("io"), re.MULTILINE)))
        moved -= int(fields[8]) * _PAGE_BYTES
        moved = moved if now - int(fields[19]) / _TICK >= _START_SECONDS else 0
        state, progress = process.progress()
        # torchrun starts several programs here: one of them that waits makes no progress.
        ticks, moved = (0.0, 0) if state == "w" else (ticks, moved)
        earlier = ranks.get(process.rank, RankSample("", 0, 0.0, 0))
        ranks[process.rank] = RankSample(
            earlier.state if not state or earlier.state in ("r", "u") else state,
            progress + earlier.done,
            ticks + earlier.ticks,
            moved + earlier.moved_bytes,
        )
    return ranks


def progress_between(before: Sample, now: Sample, seconds: float) -> Tuple[bool, List[int]]:
    """Return whether a rank has made progress between two samples, and else the ranks that use a CPU."""
    moved, busy = before.keys() != now.keys(), []
    for rank in before.keys() & now.keys():
        first, last = before[rank], now[rank]
        moved = moved or last.done != first.done
        if last.state != "w":
            moved = moved or last.moved_bytes - first.moved_bytes >= _MIN_PROGRESS_BYTES
            if last.ticks - first.ticks >= seconds * _TICK * _BUSY_SHARE:
                busy.append(rank)
    return moved, busy


def native_command(pid: int) -> List[str]:
    """Return the command that prints the native stacks of a process; empty if no tool is here."""
    if shutil.which("eu-stack"):
        return ["env", "DEBUGINFOD_URLS=", "eu-stack", "-m", "-s", "-p", str(pid)]
    if shutil.which("gdb"):
        quiet = ["-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]
        commands = ["-ex", "set print frame-arguments none", "-ex", "thread apply all bt 60"]
        return ["gdb", "-nx", "-batch", *quiet, "-p", str(pid), *commands]
    return ["py-spy", "dump", "--native", "--pid", str(pid)] if shutil.which("py-spy") else []


def run_tool(command: List[str]) -> bytes:
    """Return the output of a tool within its time limit."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        return subprocess.run(command, stdin=null, stdout=pipe, stderr=null, timeout=_TOOL_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return b""


def only_polls(stacks: str, running: Set[str]) -> bool:
    """Return whether each running thread of these native stacks is inside a call of MPI, NCCL or CUDA."""
    thread, inside, outside = "", set(), set()  # type: str, Set[str], Set[str]
    for line in stacks.splitlines():
        head = _THREAD.match(line)
        if head:
            thread = head.group().split()[-1]
        if _SOURCE_LINE.match(line):
            continue
        if _WAITING_CALL.search(line):
            inside.add(thread)
        elif line.startswith(("#", " ")) and not _NEUTRAL_FRAME.search(line):
            outside.add(thread)
    return bool(running & inside) and not (running & outside) - inside


class StallWatch:
    """The watch of one node; ``rank`` is the rank whose wrapper, the process ``parent``, started it."""

    def __init__(self, run: str, node: str, rank: int, limit: int, stops: bool, parent: int = 0) -> None:
        self._run, self._node = run, node
        self._decides = rank == 0
        self._limit, self._stops = limit, stops
        # Ten seconds, or less where a run counts as stalled after less than two minutes.
        self._period = min(10, (limit + 11) // 12)
        self._parent = parent or os.getppid()
        self._progress_notes = 0
        self._last_sample: Sample = {}
        self._last_pulse, self._gathered = b"", False
        # The last progress of any node, and the last that was seen of a rank here.
        self._pulse_time = self._certain_time = time.monotonic()
        # True while ranks that use CPUs are assumed to compute; the time to look at their calls again.
        self._computing, self._next_check = False, 0.0

    def watch(self) -> bool:
        """Look for progress until the run has ended here; return whether it was ended for a stall."""
        os.makedirs(self._state("pulse"), exist_ok=True)
        empty = 0
        while self._pause(self._period):
            local = processes(self._run)
            ranks = {process.rank for process in local if process.rank is not None}
            over = ended_ranks(self._run, ranks)
            if ranks and os.getppid() != self._parent and over == ranks:
                return False  # what is left is no rank
            # Three times without a process of the run: it is over here.
            empty = 0 if local else empty + 1
            if empty >= 3:
                return False
            if self._computes(local, over | waiting_ranks(local)):
                self._note_progress()
            if self._decides:
                self._judge()
            if not self._has("stalled"):
                self._gathered = False
                self._remove("pulse/." + self._node)
            elif not self._gathered:
                self._collect_evidence()
                if self._stops and self._may_end():
                    self._end()
                    return True
        return False

    def _computes(self, local: List[Process], over: Set[int]) -> bool:
        """Return whether a rank here, not over, has made progress since the last look or may compute."""
        running = [process for process in local if process.is_program] or local
        now = sample(process for process in running if process.rank not in over)
        moved, busy = progress_between(self._last_sample, now, self._period)
        self._last_sample = now
        moment = time.monotonic()
        # Where the programs have ended, a profiler or processes that they left go on: that is no stall.
        if moved or (not now and local):
            self._certain_time, self._computing, self._next_check = moment, True, 0.0
        elif not busy:
            self._computing = False
        elif moment - self._certain_time < self._limit // 2:
            self._computing = True
        elif moment >= self._next_check:
            self._next_check = moment + self._limit // 8
            self._computing = not all(self._polls(rank) for rank in busy)
            self._certain_time = moment if self._computing else self._certain_time
        return self._computing

    def _judge(self) -> None:
        """Call the run stalled if no node has noted progress for the time limit; take it back if one has."""
        pulse = self._pulse()
        if pulse != self._last_pulse:
            self._last_pulse, self._pulse_time = pulse, time.monotonic()
            with suppress(OSError):
                os.replace(self._state("stalled"), self._state("went_on"))
        elif not self._has("stalled") and time.monotonic() - self._pulse_time >= self._limit:
            folder = os.path.join(self._run, "stall")
            shutil.rmtree(folder, ignore_errors=True)
            self._remove("stall.json")
            os.makedirs(folder, exist_ok=True)
            self._write("stalled", "%d\n" % (time.time() - time.monotonic() + self._pulse_time))

    def _collect_evidence(self) -> None:
        # The hooks of the programs write their evidence first.
        time.sleep(self._period + 12)
        self._write_evidence()
        self._gathered = True
        now = sample(programs(self._run) or processes(self._run))
        # Gathering evidence is no progress; steps and collectives that ended meanwhile are.
        if {rank: state.done for rank, state in now.items()} != {
            r: state.done for r, state in self._last_sample.items()
        }:
            self._note_progress()
        self._write("pulse/." + self._node, "")
        self._last_sample = now

    def _pause(self, seconds: float) -> bool:
        """Wait; return whether ranks still run here, or the wrapper that started this process does."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(min(1.0, seconds))
            if os.getppid() != self._parent and not processes(self._run):
                return False
        return True

    def _state(self, name: str) -> str:
        return os.path.join(self._run, "state", name)

    def _has(self, name: str) -> bool:
        return os.path.exists(self._state(name))

    def _write(self, name: str, text: str) -> None:
        part = self._state(os.path.join(os.path.dirname(name), ".part." + self._node))
        with open(part, "w") as file:
            file.write(text)
        os.replace(part, self._state(name))

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self._state(name))

    def _note_progress(self) -> None:
        self._progress_notes += 1
        self._write("pulse/" + self._node, "%d\n" % self._progress_notes)

    def _pulse(self) -> bytes:
        return b"".join(read(path) for path in sorted(glob.glob(glob.escape(self._state("pulse")) + "/*")))

    def _polls(self, rank: int) -> bool:
        """Return whether a rank that uses a CPU only waits: each of its running threads is inside a call."""
        polls = False
        for process in programs(self._run):
            if process.rank != rank:
                continue
            paths = glob.glob(process.path + "/task/*/stat")
            stats = [read(path).decode("utf-8", "replace") for path in paths]
            running = {stat.split(" ")[0] for stat in stats if stat.rpartition(") ")[2].startswith("R")}
            if not running:
                continue
            command = native_command(process.pid)
            if not command or not process.links("cuda", "nccl", "rccl"):
                return False
            if not only_polls(run_tool(command).decode("utf-8", "replace"), running):
                return False
            polls = True
        return polls

    def _write_evidence(self) -> None:
        """Keep what the kernel knows of the ranks here, native stacks, and the state of GPUs."""
        folder = os.path.join(self._run, "stall")
        os.makedirs(folder, exist_ok=True)
        self._keep_stacks(folder)
        tools, ranks = [], set()  # type: List[Tuple[subprocess.Popen[bytes], float]], Set[int]
        for process in programs(self._run):
            if process.rank is None:
                continue
            name = "%s/rank%05d" % (folder, process.rank)
            ranks.add(process.rank)
            wanted = r"^(?:State|Threads|VmRSS|VmSwap|voluntary_ctxt_switches):.*\n"
            status = "".join(re.findall(wanted, process.text("status"), re.MULTILINE))
            with open(name + ".process.part", "a") as file:
                file.write("%swchan %s\n%s" % (process.text("stat"), process.text("wchan"), status))
            # Only where the program does not tell itself: to look from outside stops it for a moment.
            if process.progress()[0] in ("r", "w") or (
                os.path.exists(name + ".json") and not process.links()
            ):
                continue
            command, null = native_command(process.pid), subprocess.DEVNULL
            if command:
                with open("%s.native.%d" % (name, process.pid), "wb") as out:
                    tool = subprocess.Popen(command, stdin=null, stdout=out, stderr=null)
                tools.append((tool, time.monotonic() + _TOOL_SECONDS))
                if len(tools) % _MAX_TOOLS == 0:
                    self._await(tools)
        requests = [self._ask_for_dump(rank, folder) for rank in ranks]
        self._await(tools)
        if any(requests):
            time.sleep(5)
        for rank in ranks:
            keep_dumps(self._run, rank)
            os.replace("%s/rank%05d.process.part" % (folder, rank), "%s/rank%05d.process" % (folder, rank))
        self._keep_gpus(folder)

    def _keep_stacks(self, folder: str) -> None:
        """Keep the Python stacks of programs without a pulse, and of those whose interpreter is stuck."""
        files = {}  # type: Dict[str, Dict[str, int]]
        for process in programs(self._run):
            path = "%s/rank%05d" % (folder, -1 if process.rank is None else process.rank)
            if process.rank is not None and not os.path.exists(path + ".json"):
                files[path + ".stack"] = process.stacks_in_memory() or files.get(path + ".stack", {})
        time.sleep(_STACKS_SECONDS if any(files.values()) else 0)
        for path, descriptors in files.items():
            stacks = b"".join(read(descriptor)[size:] for descriptor, size in descriptors.items())
            if stacks:
                with open(path, "wb") as file:
                    file.write(stacks)

    @staticmethod
    def _await(tools: "List[Tuple[subprocess.Popen[bytes], float]]") -> None:
        for tool, until in tools:
            try:
                tool.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                tool.kill()
                tool.wait()
        del tools[:]

    def _ask_for_dump(self, rank: int, folder: str) -> bool:
        """Ask PyTorch for the last collectives of NCCL where the interpreter is stuck and has not told."""
        requested = False
        for pipe in glob.glob(glob.escape(self._state("dumps/rank%05d" % rank)) + "/*.pipe"):
            worker = os.path.basename(pipe)[: -len(".pipe")]
            if worker.isdigit() and not os.path.exists("%s/rank%05d.json" % (folder, int(worker))):
                with suppress(OSError):
                    # To open it for both waits for no reader.
                    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
                    os.write(descriptor, b"1")
                    time.sleep(0.1)
                    os.close(descriptor)
                    requested = True
        return requested

    def _keep_gpus(self, folder: str) -> None:
        if shutil.which("nvidia-smi"):
            columns = "index,name,utilization.gpu,memory.used,clocks.sm,temperature.gpu,power.draw"
            text = run_tool(["nvidia-smi", "--query-gpu=" + columns, "--format=csv"])
            with open("%s/%s.gpu.csv" % (folder, self._node), "wb") as file:
                file.write(text)
        if any("/libnccl" in process.text("maps") for process in processes(self._run)):
            text = ask_ras(os.environ.get("NCCL_RAS_ADDR") or "localhost:28028")
            if text:
                with open("%s/%s.ras" % (folder, self._node), "wb") as file:
                    file.write(text)

    def _may_end(self) -> bool:
        """Return whether to end the run, once all nodes have gathered: if one node ends, the job ends."""
        until = time.monotonic() + _MAX_GATHER_SECONDS
        while time.monotonic() < until:
            files = os.listdir(self._state("pulse"))
            gathered = sum(name.startswith(".") and not name.startswith(".part.") for name in files)
            if gathered >= sum(not name.startswith(".") for name in files):
                break
            time.sleep(3)
        if self._decides:
            if self._pulse() != self._last_pulse:
                return False
            self._write("stall_stop", self._node + "\n")
        while self._has("stalled") and not self._has("stall_stop"):
            if not self._pause(2):
                return False
        return self._has("stall_stop")

    def _end(self) -> None:
        """End the processes here: profilers first, so that they write, and programs without one at once."""
        wrapper = os.fsencode(self._run + "/wrapper.sh")
        for process in processes(self._run):
            parent = re.search(r"^PPid:\s*(\d+)", process.text("status"), re.MULTILINE)
            if not process.is_profiled or (
                parent and wrapper in read("/proc/%s/cmdline" % parent.group(1)).split(b"\0")
            ):
                process.send(signal.SIGTERM)
        self._await_end(15)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in programs(self._run):
                process.send(number)
            self._await_end(15)
        self._await_end(300)
        for process in processes(self._run):
            process.send(signal.SIGKILL)

    def _await_end(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and processes(self._run):
            time.sleep(1)


def keep_dumps(run: str, rank: int) -> None:
    """Keep what PyTorch has dumped for the ranks that a rank has started."""
    for dump in glob.glob(glob.escape("%s/state/dumps/rank%05d" % (run, rank)) + "/dump_*"):
        worker = dump.rpartition("_")[2]
        if worker.isdigit() and os.path.getsize(dump):
            target = "%s/stall/rank%05d.flight.pickle" % (run, int(worker))
            shutil.copyfile(dump, target + ".part")
            os.replace(target + ".part", target)


def ask_ras(address: str) -> bytes:
    """Return the answer of NCCL's own monitor about all ranks (2.24 and later)."""
    host, _, port = address.rpartition(":")
    text = b""
    with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), 3) as monitor:
        monitor.settimeout(10)
        monitor.sendall(b"verbose status\n")
        for part in iter(lambda: monitor.recv(1 << 16), b""):
            text += part
    return text
