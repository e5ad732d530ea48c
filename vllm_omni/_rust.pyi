"""The native library: `int4-kernels` and `procmon` for Python, and the torch operators' CPU kernels.

Buffers are anything with the buffer protocol, C-contiguous, of exactly the element type named. Functions that
take them let other Python threads run: those must not write to the buffers meanwhile.
"""

from typing import Literal, final

from typing_extensions import Buffer

_ScaleType = Literal["f16", "bf16"]
_ZeroKind = Literal["none", "u8", "offset"]
_IsaLevel = Literal["scalar", "avx2", "avx512"]

LAYOUT_VERSION: int
"""Version of the packed layout that is written, and the newest that is read."""

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
    isa: Literal["scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16"]
    """What the CPU must have."""
    form: Literal["f32", "bf16", "int8"]
    """How activations are read."""
    bits: Literal[4, 8]
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
    """The kernel table: for one form and one width of codes, the fastest comes first."""

def select_kernel(dtype: Literal["bf16", "f16", "f32"], activation: int, bits: int) -> str:
    """The name of the kernel that computes a linear layer now. activation: 0 native, 32 or 128 int8.
    Raises ValueError."""

def isa_level() -> _IsaLevel:
    """The instruction set level in use."""

def set_isa_level(level: str) -> None:
    """Use no instruction set above `level`, from the next call on and in the whole process.
    Raises ValueError for an unknown level, or one that the machine lacks."""

def register_torch_ops(torch_lib_dir: str, *qualified_names: str) -> None:
    """Register native CPU kernels for operators that have a schema: `namespace::…int4_linear` or
    `namespace::…int4_embedding`. `torch_lib_dir` is the `lib` folder of the imported torch.
    Raises RuntimeError naming the symbol this torch lacks, or the operator that torch refused."""

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
