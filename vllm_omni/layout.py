"""The packed layout in plain torch: headers, sections, codes. ``docs/layouts.md`` draws it.

What the native library does in Rust, for processes without it. A packed tensor is uint8 ``[bytes]``: segments
of the same K behind each other, each ``header | panels | scales | zeros | permutation``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import xxhash

from vllm_omni.errors import FormatError
from vllm_omni.formats.affine import AffineCodes
from vllm_omni.formats.words import slabs
from vllm_omni.layout_header import HEADER, HEADER_BYTES, LAYOUT_VERSION, MAGIC, HeaderFields

ALIGNMENT = 64
PANEL_ROWS = 16
BLOCK_BYTES = 64

ScaleType = Literal["f16", "bf16"]
ZeroKind = Literal["none", "u8", "offset"]
SCALE_TYPES: tuple[ScaleType, ...] = ("f16", "bf16")
ZERO_KINDS: tuple[ZeroKind, ...] = ("none", "u8", "offset")
_SCALE_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
SECTIONS = ("panels", "scales", "zeros", "permutation")


@dataclass(frozen=True)
class Segment:
    """One segment of a packed tensor.

    Attributes:
        n, k: output and input features.
        bits: 4 or 8.
        group_size: columns per scale; −1 for one group per row.
        scale_type: type of scales and offsets, as stored.
        zero_kind: ``none`` (z is the middle of the range), ``u8`` (``w = s·(q − z)``) or ``offset``
            (``w = s·q + m``).
        permuted: whether packed columns are in another order than the weight's.
        offset_bytes: where the segment starts in the packed tensor.
    """

    n: int
    k: int
    bits: int
    group_size: int
    scale_type: ScaleType
    zero_kind: ZeroKind
    permuted: bool
    offset_bytes: int = 0

    @property
    def panels(self) -> int:
        return -(-self.n // PANEL_ROWS)

    @property
    def block_columns(self) -> int:
        return 8 if self.bits == 4 else 4

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block_columns)

    @property
    def group_columns(self) -> int:
        return self.k if self.group_size == -1 else min(self.group_size, self.k)

    @property
    def groups(self) -> int:
        return -(-self.k // self.group_columns)

    @property
    def section_bytes(self) -> tuple[int, int, int, int]:
        """Padded bytes of panels, scales, zeros and permutation."""
        entries = self.panels * self.groups * PANEL_ROWS
        zeros = {"none": 0, "u8": entries, "offset": 2 * entries}[self.zero_kind]
        permutation = 4 * self.k if self.permuted else 0
        return (
            self.panels * self.blocks * BLOCK_BYTES,
            _padded(2 * entries),
            _padded(zeros),
            _padded(permutation),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the whole segment, header included; a multiple of 64."""
        return HEADER_BYTES + sum(self.section_bytes)

    def section(self, packed: torch.Tensor, name: str) -> torch.Tensor:
        """uint8 ``[padded bytes]`` of one section."""
        index = SECTIONS.index(name)
        start = self.offset_bytes + HEADER_BYTES + sum(self.section_bytes[:index])
        return packed[start : start + self.section_bytes[index]]


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def parse(packed: torch.Tensor) -> tuple[Segment, ...]:
    """The segments of a packed tensor. Checks that every header field agrees with the others and with the
    tensor's length, but no checksum (see :func:`verify`). Raises :class:`FormatError`."""
    total = packed.numel()
    segments: list[Segment] = []
    offset = 0
    while offset < total or not segments:
        where = f"packed tensor, segment {len(segments)}"
        head = _header_bytes(packed, offset)
        if head[: len(MAGIC)] != MAGIC[: len(head)]:
            raise FormatError(f"{where}: expected it to start with {MAGIC!r}, got {head[:8]!r}")
        if len(head) < HEADER_BYTES:
            raise FormatError(
                f"{where}: truncated, expected at least {offset + HEADER_BYTES} bytes, got {total}"
            )
        segment = _read_header(head, where, offset)
        if offset + segment.nbytes > total:
            raise FormatError(
                f"{where}: truncated, expected at least {offset + segment.nbytes} bytes, got {total}"
            )
        if segments and segment.k != segments[0].k:
            raise FormatError(f"{where}: expected k={segments[0].k} as in segment 0, got k={segment.k}")
        segments.append(segment)
        offset += segment.nbytes
    return tuple(segments)


def _header_bytes(packed: torch.Tensor, offset: int) -> bytes:
    return packed[offset : offset + HEADER_BYTES].numpy().tobytes()


def _read_header(head: bytes, where: str, offset: int) -> Segment:
    stored = HeaderFields.unpack(head)
    if stored.version != LAYOUT_VERSION:
        raise FormatError(f"{where}: layout version {stored.version}, this library reads {LAYOUT_VERSION}")
    if stored.code_kind != 0:
        raise FormatError(f"{where}: code kind {stored.code_kind} is not supported, expected 0 (affine)")
    for field, ok, expected, found in (
        ("header_bytes", stored.header_bytes == HEADER_BYTES, HEADER_BYTES, stored.header_bytes),
        ("n", stored.n >= 1, "at least 1", stored.n),
        ("k", stored.k >= 1, "at least 1", stored.k),
        ("bits", stored.bits in (4, 8), "4 or 8", stored.bits),
        ("group_size", stored.group_size % 8 == 0, "a multiple of 8", stored.group_size),
        ("scale_type", stored.scale_type < len(SCALE_TYPES), "0 (f16) or 1 (bf16)", stored.scale_type),
        ("zero_kind", stored.zero_kind < len(ZERO_KINDS), "0 (none), 1 (u8) or 2 (offset)", stored.zero_kind),
        ("permuted", stored.permuted in (0, 1), "0 or 1", stored.permuted),
        ("reserved bytes", stored.reserved == bytes(3), "zeros", stored.reserved),
    ):
        if not ok:
            raise FormatError(f"{where}: {field}: expected {expected}, got {found!r}")
    segment = Segment(
        n=stored.n,
        k=stored.k,
        bits=stored.bits,
        group_size=stored.group_size or -1,
        scale_type=SCALE_TYPES[stored.scale_type],
        zero_kind=ZERO_KINDS[stored.zero_kind],
        permuted=bool(stored.permuted),
        offset_bytes=offset,
    )
    for name, found, expected in zip(
        (*SECTIONS, "segment"),
        (*stored.section_bytes, stored.segment_bytes),
        (*segment.section_bytes, segment.nbytes),
        strict=True,
    ):
        if found != expected:
            raise FormatError(f"{where}: {name}: expected {expected} bytes, got {found}")
    return segment


def verify(packed: torch.Tensor) -> tuple[Segment, ...]:
    """:func:`parse`, then every checksum. Raises :class:`FormatError` naming segment and section."""
    segments = parse(packed)
    for index, segment in enumerate(segments):
        where = f"packed tensor, segment {index}"
        head = _header_bytes(packed, segment.offset_bytes)
        stored_header = HeaderFields.unpack(head)
        if xxhash.xxh3_64_intdigest(head[:-8]) != stored_header.header_checksum:
            raise FormatError(f"{where}: the header's checksum does not match its bytes")
        for name, stored in zip(SECTIONS, stored_header.section_checksums, strict=True):
            if _checksum(segment.section(packed, name)) != stored:
                raise FormatError(f"{where}: the checksum of {name} does not match its bytes")
        if segment.permuted and not torch.equal(
            permutation_of(packed, segment).sort().values, torch.arange(segment.k)
        ):
            raise FormatError(f"{where}: permutation: expected every column from 0 to {segment.k - 1} once")
    return segments


def _checksum(section: torch.Tensor) -> int:
    return xxhash.xxh3_64_intdigest(section.numpy())


def segment_of(weight: AffineCodes) -> Segment:
    """The segment that :func:`pack` makes of ``weight``."""
    n, k = weight.codes.shape
    return Segment(
        n=n,
        k=k,
        bits=weight.bits,
        group_size=weight.group_size,
        scale_type="f16" if weight.scales.dtype == torch.float16 else "bf16",
        zero_kind="u8" if weight.zeros is not None else "offset" if weight.offsets is not None else "none",
        permuted=weight.permutation is not None,
    )


def pack_into(packed: torch.Tensor, weight: AffineCodes) -> None:
    """Write ``weight`` as one segment into ``packed``, uint8 ``[segment_of(weight).nbytes]``."""
    segment = segment_of(weight)
    packed.zero_()
    panels = segment.section(packed, "panels").view(segment.panels, segment.blocks, PANEL_ROWS, 4)
    for run in slabs(segment.panels, PANEL_ROWS * segment.k):
        rows = weight.codes[run.start * PANEL_ROWS : run.stop * PANEL_ROWS]
        panels[run] = _blocks(rows, run.stop - run.start, segment)
    for name, values in (
        ("scales", weight.scales),
        ("zeros", weight.zeros if weight.zeros is not None else weight.offsets),
    ):
        if values is not None:
            laid = _by_panel(values, segment)
            segment.section(packed, name)[: laid.numel()] = laid
    if weight.permutation is not None:
        words = weight.permutation.to(torch.int32).contiguous().view(torch.uint8)
        segment.section(packed, "permutation")[: words.numel()] = words
    _write_header(packed, segment)


def _write_header(packed: torch.Tensor, segment: Segment) -> None:
    checksums = [_checksum(segment.section(packed, name)) for name in SECTIONS]
    head = HEADER.pack(
        MAGIC,
        LAYOUT_VERSION,
        HEADER_BYTES,
        segment.n,
        segment.k,
        max(segment.group_size, 0),
        segment.bits,
        SCALE_TYPES.index(segment.scale_type),
        ZERO_KINDS.index(segment.zero_kind),
        0,
        segment.permuted,
        bytes(3),
        *segment.section_bytes,
        *checksums,
        segment.nbytes,
        0,
    )[:-8]
    head += xxhash.xxh3_64_digest(head)[::-1]  # the digest is big-endian
    packed[:HEADER_BYTES] = torch.frombuffer(bytearray(head), dtype=torch.uint8)


def _blocks(rows: torch.Tensor, panels: int, segment: Segment) -> torch.Tensor:
    """Codes ``[rows, K]`` to blocks ``[panels, blocks, 16, 4]``; missing rows and columns are 0."""
    width = segment.blocks * segment.block_columns
    codes = torch.zeros((panels * PANEL_ROWS, width), dtype=torch.uint8)
    codes[: rows.shape[0], : segment.k] = rows
    if segment.bits == 8:
        return codes.view(panels, PANEL_ROWS, segment.blocks, 4).transpose(1, 2)
    halves = codes.view(panels, PANEL_ROWS, segment.blocks, 2, 4)
    return (halves[..., 0, :] | halves[..., 1, :] << 4).transpose(1, 2)


def _by_panel(values: torch.Tensor, segment: Segment) -> torch.Tensor:
    """``[N, groups]`` to the bytes of ``[panel][group][16]``."""
    laid = values.new_zeros((segment.panels * PANEL_ROWS, segment.groups))
    laid[: segment.n] = values
    laid = laid.view(segment.panels, PANEL_ROWS, segment.groups).transpose(1, 2).contiguous()
    return laid.flatten().view(torch.uint8)


def codes_of(packed: torch.Tensor, segment: Segment, panels: slice) -> torch.Tensor:
    """uint8 ``[rows, K]`` codes of a run of panels, in packed column order; rows past N are left out."""
    blocks = segment.section(packed, "panels").view(segment.panels, segment.blocks, PANEL_ROWS, 4)[panels]
    if segment.bits == 8:
        codes = blocks.transpose(1, 2)
    else:
        codes = torch.stack((blocks & 0x0F, blocks >> 4), dim=3).permute(0, 2, 1, 3, 4)
    codes = codes.reshape(blocks.shape[0] * PANEL_ROWS, -1)
    return codes[: segment.n - panels.start * PANEL_ROWS, : segment.k]


def _stored(packed: torch.Tensor, segment: Segment, section: str, dtype: torch.dtype) -> torch.Tensor:
    entries = segment.panels * segment.groups * PANEL_ROWS
    laid = segment.section(packed, section)[: entries * dtype.itemsize].view(dtype)
    laid = laid.view(segment.panels, segment.groups, PANEL_ROWS).transpose(1, 2)
    return laid.reshape(-1, segment.groups)[: segment.n]


def scales_of(packed: torch.Tensor, segment: Segment) -> torch.Tensor:
    """``[N, groups]`` scales as stored."""
    return _stored(packed, segment, "scales", _SCALE_DTYPES[segment.scale_type])


def zeros_of(packed: torch.Tensor, segment: Segment) -> torch.Tensor | None:
    """uint8 ``[N, groups]`` zero-points, or None when the segment stores none."""
    return _stored(packed, segment, "zeros", torch.uint8) if segment.zero_kind == "u8" else None


def offsets_of(packed: torch.Tensor, segment: Segment) -> torch.Tensor | None:
    """``[N, groups]`` float offsets as stored, or None when the segment stores none."""
    if segment.zero_kind != "offset":
        return None
    return _stored(packed, segment, "zeros", _SCALE_DTYPES[segment.scale_type])


def permutation_of(packed: torch.Tensor, segment: Segment) -> torch.Tensor:
    """int64 ``[K]``: packed column ``j`` holds original column ``p[j]``."""
    if not segment.permuted:
        return torch.arange(segment.k)
    return segment.section(packed, "permutation").view(torch.int32)[: segment.k].long()
