"""The fixed part of the packed layout: a segment's 128-byte header, and where packed tensors are found.

Imports no torch: whoever reads headers alone needs none. :mod:`vllm_omni.layout` knows the rest.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

# The end of a packed tensor's name in a checkpoint, after its module's name.
PACKED_SUFFIX = ".weight_packed"

LAYOUT_VERSION = 1
MAGIC = b"OMNIPK\r\n"

# magic, version, header bytes | n, k, group size | bits, scale type, zero kind, code kind, permuted, reserved
# | bytes of panels, scales, zeros, permutation | their checksums | segment bytes | checksum of all before it
HEADER = struct.Struct("<8sII QQQ 5B3s 4Q 4Q Q Q".replace(" ", ""))
HEADER_BYTES = 128
assert HEADER.size == HEADER_BYTES


class HeaderFields(NamedTuple):
    """A header's numbers as stored, unchecked. ``group_size`` 0 is one group per row."""

    magic: bytes
    version: int
    header_bytes: int
    n: int
    k: int
    group_size: int
    bits: int
    scale_type: int
    zero_kind: int
    code_kind: int
    permuted: int
    reserved: bytes
    panels_bytes: int
    scales_bytes: int
    zeros_bytes: int
    permutation_bytes: int
    panels_checksum: int
    scales_checksum: int
    zeros_checksum: int
    permutation_checksum: int
    segment_bytes: int
    header_checksum: int

    @classmethod
    def unpack(cls, head: bytes) -> HeaderFields:
        """``head`` holds exactly ``HEADER_BYTES`` bytes."""
        return cls._make(HEADER.unpack(head))

    @property
    def section_bytes(self) -> tuple[int, int, int, int]:
        """Bytes of panels, scales, zeros and permutation."""
        return self.panels_bytes, self.scales_bytes, self.zeros_bytes, self.permutation_bytes

    @property
    def section_checksums(self) -> tuple[int, int, int, int]:
        """xxh3 of panels, scales, zeros and permutation."""
        return self.panels_checksum, self.scales_checksum, self.zeros_checksum, self.permutation_checksum
