"""The native library: `int4-kernels` and `procmon` for Python, and the torch operators' CPU kernels.

Buffers are anything with the buffer protocol, C-contiguous, of exactly the element type named. Functions that
take them let other Python threads run: those must not write to the buffers meanwhile.
"""

from collections.abc import Sequence
from typing import Literal, final

from typing_extensions import Buffer

_ScaleType = Literal["f16", "bf16"]
_ZeroKind = Literal["none", "u8", "offset"]
_IsaLevel = Literal["scalar", "avx2", "avx_vnni", "avx512", "amx"]
_Dtype = Literal["bf16", "f16", "f32"]

LAYOUT_VERSION: int
"""Version of the packed layout that is written, and the newest that is read."""

BUILD_PROFILE: Literal["debug", "release"]
"""How the library was compiled."""

class LayoutError(ValueError):
    """Packed bytes, or a request to pack, that the layout does not allow."""

@final
class SegmentInfo:
    """One segment of a packed tensor: see `vllm_omni.layout.Segment`."""

    n: int
    k: int
    bits: int
    group_size: int
    """Columns per scale; -1 for one group per row."""
    scale_type: _ScaleType
    zero_kind: _ZeroKind
    permuted: bool
    offset: int
    """Bytes from the start of the packed tensor."""
    nbytes: int
    """Header included."""

@final
class KernelInfo:
    """One row of the kernel table."""

    name: str
    isa: Literal["scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"]
    """What the CPU must have."""
    form: Literal["f32", "bf16", "int8", "i24"]
    """How activations are read; `i24` is 24-bit fixed point, for 16-bit floats where there is VNNI."""
    bits: Literal[4, 8, 16, 32]
    """Of packed codes, or of the elements of an unquantized weight."""
    min_rows: int
    """Rows of activations from which on it is chosen; 1 for all but tile kernels."""
    available: bool
    """Whether the machine and the level in use allow it."""

def packed_bytes(
    n: int,
    k: int,
    bits: int,
    group_size: int,
    scale_type: _ScaleType,
    zero_kind: _ZeroKind,
    permuted: bool,
) -> int:
    """Bytes of a segment. Raises LayoutError."""

def pack_into(
    out: Buffer,
    codes: Buffer,
    scales: Buffer,
    zeros: Buffer | None,
    offsets: Buffer | None,
    permutation: Buffer | None,
    *,
    n: int,
    k: int,
    bits: int,
    group_size: int,
    scale_type: _ScaleType,
) -> None:
    """Write one segment.

    out: writable uint8, exactly `packed_bytes`. codes: uint8 [n, k] in packed column order. scales: uint16
    [n, groups], bit patterns of `scale_type`. zeros: uint8 [n, groups]. offsets: uint16 [n, groups], like
    scales; not together with zeros. permutation: uint32 [k], packed column j holds original column
    permutation[j].
    Raises LayoutError, and then `out` is as it was.
    """

def segments(packed: Buffer, verify: bool) -> list[SegmentInfo]:
    """The segments of packed uint8 bytes; with `verify`, checksums are computed. Raises LayoutError."""

def kernels() -> list[KernelInfo]:
    """The kernel tables, first of packed and then of unquantized weights: for one form and one width the
    fastest comes first, from `min_rows` on."""

def select_kernel(dtype: _Dtype, activation: int, bits: int, rows: int = 1) -> str:
    """The name of the kernel that computes a linear layer of `rows` rows of activations now (1: decoding one
    sequence). activation: 0 native, 32 or 128 int8. Raises ValueError."""

def select_dense_kernel(dtype: _Dtype, weight_dtype: _Dtype) -> str:
    """The name of the kernel that computes with an unquantized weight now. Raises ValueError."""

def isa_level() -> _IsaLevel:
    """The instruction set level in use."""

def set_isa_level(level: str) -> None:
    """Use no instruction set above `level`, from the next call on and in the whole process.
    Raises ValueError for an unknown level, or one that the machine lacks."""

def tiles_left_out() -> list[str]:
    """Why tiles (AMX) that the CPU has are not used: a sentence for each kernel whose results differ from
    those on emulated tiles. Empty where none do, and at a level below `amx`."""

def register_torch_ops(torch_lib_dir: str, *qualified_names: str) -> None:
    """Register native CPU kernels for operators that have a schema: `namespace::…int4_linear`,
    `…int4_embedding`, `…dense_linear` or `…dense_embedding`. `torch_lib_dir` is the `lib` folder of the
    imported torch.
    Raises RuntimeError naming the symbol this torch lacks, or the operator that torch refused."""

@final
class KernelCalls:
    """What one kernel did since the last `reset_kernel_calls`, in this process."""

    kernel: str
    """A name of `kernels()`, or `rows-q4`, `rows-q8`, `rows-w16`, `rows-w32`: embedding lookups. A call of a
    tensor whose segments differ in width counts for the kernel of each."""
    bits: Literal[4, 8, 16, 32]
    layers: int
    """Distinct weights, told apart by address; a lower bound when `untracked_calls` is not 0."""
    calls: int
    """All of them, untracked ones included."""
    untracked_calls: int
    """Calls whose tensor found no room in the table (8192 pairs of kernel and tensor per process)."""

def kernel_calls() -> list[KernelCalls]:
    """The kernels that the native operators ran since the last reset, most calls first. What torch's fallback
    (`vllm_omni.portable`) computes is in no row."""

def reset_kernel_calls() -> None:
    """Start counting from zero, with an empty table. To be called while no operator runs: a call in flight
    may count for another tensor."""

def read_ceiling(memory: Buffer) -> int:
    """Read uint8 memory once, as fast as the machine can, on torch's threads: the measure of a GEMV.
    Returns the sum of its little-endian 64-bit words modulo 2^64. Raises RuntimeError before
    `register_torch_ops`."""

@final
class ProcessMemory:
    """Memory of one process at one moment, in bytes: see `vllm_omni.monitor`."""

    pid: int
    ppid: int
    name: str
    state: str
    rss_anon_bytes: int
    rss_file_bytes: int
    rss_shmem_bytes: int
    vm_swap_bytes: int
    pss_bytes: int | None
    pss_anon_bytes: int | None
    pss_file_bytes: int | None
    pss_shmem_bytes: int | None
    private_clean_bytes: int | None
    private_dirty_bytes: int | None
    swap_pss_bytes: int | None
    unreadable: str | None
    """Why `pss_bytes` and the other parts of `smaps_rollup` are None, or None."""

@final
class TreeMemory:
    """Sums over a process and all its descendants, in bytes."""

    processes: list[ProcessMemory]
    vanished: int
    """Processes that ended while they were read."""
    problems: list[tuple[int, str]]
    """Process ids that could not be read, and why."""
    rss_anon_bytes: int
    rss_file_bytes: int
    rss_shmem_bytes: int
    vm_swap_bytes: int
    pss_bytes: int | None
    pss_anon_bytes: int | None
    pss_file_bytes: int | None
    pss_shmem_bytes: int | None
    private_clean_bytes: int | None
    private_dirty_bytes: int | None
    swap_pss_bytes: int | None

@final
class TrimResult:
    """What `malloc_trim` did to this process."""

    rss_anon_before_bytes: int
    rss_anon_after_bytes: int
    elapsed_ns: int
    released: bool
    allocator: str
    note: str | None

def process_memory(pid: int, pss: bool = True) -> ProcessMemory:
    """Memory of a process; `pss` reads `smaps_rollup` as well. Raises OSError."""

def tree_memory(pid: int, pss: bool = True) -> TreeMemory:
    """Memory of a process and all its descendants. Raises OSError."""

def malloc_trim() -> TrimResult:
    """Give this process's free heap pages back to the kernel. Raises OSError."""

@final
class TreeSampler:
    """Watches the memory of a process tree from a Rust thread: see `vllm_omni.monitor`."""

    def __new__(
        cls, pid: int, interval_s: float = 0.02, keep_every_s: float = 0.1, *, start_ticks: int | None = None
    ) -> TreeSampler:
        """`start_ticks`: what `process_start_ticks` said when the pid was learnt; another process with the
        same number is refused then. Raises ValueError."""

    def start(self) -> None:
        """Take the first sample and start the thread. Raises OSError (ProcessLookupError), RuntimeError when
        running already."""

    def so_far(self) -> TreeSamples:
        """What was seen so far; the sampler goes on. Raises RuntimeError when not running."""

    def stop(self) -> TreeSamples:
        """Take the last sample and end the thread. Raises RuntimeError when not running."""

@final
class TreeSamples:
    """What a `TreeSampler` saw; sums over the tree."""

    points: list[tuple[float, int, int, int, int, int]]
    """(t_s since the start, rss_anon_bytes, rss_file_bytes, rss_shmem_bytes, swap_bytes, processes): of each
    kept interval the sample with the most rss_anon_bytes."""
    peak_rss_anon_bytes: int
    peak_rss_file_bytes: int
    peak_rss_shmem_bytes: int
    peak_swap_bytes: int
    peak_processes: int
    peak_t_s: float
    """When `peak_rss_anon_bytes` was seen first."""
    last_rss_anon_bytes: int
    """Of the last sample of a tree that held memory; low when it was just ending."""
    last_rss_file_bytes: int
    last_rss_shmem_bytes: int
    last_swap_bytes: int
    last_processes: int
    samples: int
    cpu_ns: int
    """CPU time of the sampling: what watching cost."""
    wall_s: float
    vanished: int
    """Processes of the tree that ended meanwhile."""
    problems: list[tuple[int, str]]
    """Process ids that could not be read, and why, each reason once."""
    max_threads: int
    """Most threads in the tree at once."""
    cpu_time_s: float
    """CPU time of the tree since its processes began, children that were waited for included. Read once per
    kept interval, so up to one interval of a tree that ended is missing."""

@final
class CoreUse:
    """Shares of one core over a window, 0 to 1."""

    busy: float
    steal: float
    foreign: float
    """Busy less what own processes used."""

@final
class ProcessUse:
    """A foreign process on a core. `str()` of it reads `name (pid) 37 % of core 1`."""

    pid: int
    name: str
    core: int
    share: float
    """Of the core, 0 to 1, by all its threads."""

@final
class Occupancy:
    """What cores did over a window."""

    cores: dict[int, CoreUse]
    processes: list[ProcessUse]
    """Foreign ones with at least a clock tick (10 ms) on one of the cores, busiest first."""
    window_s: float
    cpu_ns: int
    """CPU time that looking took."""

def occupancy(cores: Sequence[int], window_s: float = 0.75, own_pids: Sequence[int] = ...) -> Occupancy:
    """What `cores` did over the next `window_s`; processes of `own_pids` and their descendants are own.
    Blocks, without the GIL. Raises ValueError for a core that is offline or absent, OSError."""

@final
class WatchResult:
    """What disturbed a program on its cores; shares are of the cores' time together, 0 to 1."""

    steal: float
    foreign: float
    """Neither idle nor stolen nor used by the own tree: other processes and interrupts."""
    foreign_by_core: dict[int, float]
    """What foreign processes took of each core, as far as they were seen by name."""
    processes: list[str]
    """`name (pid) 37 % of core 1`: foreign processes with at least 1 % of a core, busiest first. One that
    began and ended between two looks is in `foreign` alone."""
    throttled_s: float
    """Waiting of the own tree's control group for its quota, summed over cores."""
    samples: int
    cpu_ns: int
    """CPU time of the watching."""
    wall_s: float
    """What the shares cover: until the last round at which the own tree's root was there."""

@final
class OccupancyWatch:
    """Watches cores from a Rust thread while a program runs on them: see `vllm_omni.monitor`."""

    def __new__(cls, cores: Sequence[int], own_root_pid: int, interval_s: float = 0.5) -> OccupancyWatch:
        """Raises ValueError."""

    def start(self) -> None:
        """Raises ValueError for a core that is not there, OSError, RuntimeError when running already."""

    def stop(self) -> WatchResult:
        """Take the last round and end the thread. Raises RuntimeError when not running."""

@final
class CgroupLimits:
    """What control groups allow a process; None is no limit, or none that can be seen."""

    version: Literal[1, 2] | None
    cpu_quota_cores: float | None
    memory_limit_bytes: int | None
    cpuset: str | None

def cgroup_limits(pid: int) -> CgroupLimits:
    """Raises OSError."""

def cgroup_throttled_ns(pid: int) -> int | None:
    """Raises OSError."""

def process_start_ticks(pid: int) -> int:
    """Raises OSError."""

@final
class Mapping:
    """All mappings of one name, summed."""

    kind: Literal["file", "heap", "stack", "anon", "shmem", "special"]
    name: str
    mappings: int
    size_bytes: int
    rss_bytes: int
    pss_bytes: int
    anon_bytes: int
    swap_bytes: int

def smaps_ledger(pid: int) -> list[Mapping]:
    """Raises OSError."""

def bind_memory_to_nodes(nodes: Sequence[int]) -> None:
    """Raises OSError."""

def unbind_memory() -> None:
    """Raises OSError."""
