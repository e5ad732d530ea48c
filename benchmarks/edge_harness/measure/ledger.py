"""What the anonymous memory of an engine is: tensors by their resident pages, then what the allocators hold.

    python -m benchmarks.edge_harness.measure.ledger --model DIR

The engine is in this process. Tensors come first, by what they are for; a page that two of them share counts
for the first. Then, as growth since the import: compiled code, libraries, Python's objects, and other native
allocations, which nobody was asked about: shown, and counted as unattributed in
``unattributed_share_with_residual``. ``malloc_trim`` tells the allocator's slack. What is left is
unattributed, and printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.edge_harness.measure import arm
from benchmarks.edge_harness.measure.emit import Output
from benchmarks.edge_harness.measure.malloc_stats import MallocStats, malloc_stats, python_arena_bytes
from benchmarks.edge_harness.measure.memory_marks import MB, MemoryMarks
from benchmarks.edge_harness.measure.page_residency import Pagemap, Residency
from benchmarks.edge_harness.measure.thread_binding import binding_record
from vllm_omni import monitor
from vllm_omni.errors import OmniError
from vllm_omni.layout_header import HEADER_BYTES

if TYPE_CHECKING:
    from vllm_omni.layout import Segment

_COMPILED = ("torchinductor", "inductor_cache", "torch_compile_cache", "torch_aot_compile")

# A difference between what the allocator gave out and what has an owner: shown, and no explanation.
RESIDUAL = "native allocations without a known owner"

# In this order: a page counts for the first role that holds it.
TENSOR_ROLES = (
    "packed weights",
    "scales of packed weights",
    "packed table and head",
    "scales of packed table and head",
    "plain table and head",
    "other parameters (norms, plain scales)",
    "KV cache",
    "RoPE cache",
    "engine buffers (other tensors)",
)


@dataclass(frozen=True)
class Entry:
    """``anonymous_mb`` adds up to RssAnon; ``mapped_mb`` is in files and costs no anonymous memory."""

    name: str
    anonymous_mb: float
    mapped_mb: float = 0.0
    allocated_mb: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The process at one moment; anonymous bytes of mapped files by what they are."""

    rss_anon_bytes: int
    malloc: MallocStats | None
    python_bytes: int | None
    compiled_bytes: int
    library_bytes: int

    @classmethod
    def take(cls) -> Snapshot:
        mappings = monitor.smaps_ledger()
        files = [m for m in mappings if m.kind == "file"]
        compiled = sum(m.anon_bytes for m in files if is_compiled(m.name))
        return cls(
            rss_anon_bytes=monitor.process_memory(pss=False).rss_anon_bytes,
            malloc=malloc_stats(),
            python_bytes=python_arena_bytes(),
            compiled_bytes=compiled,
            library_bytes=sum(m.anon_bytes for m in files) - compiled,
        )


def is_compiled(name: str) -> bool:
    """Whether a mapped file is a kernel that the compiler made."""
    return any(part in name for part in _COMPILED)


def tensor_ranges(engine: Any) -> dict[str, list[tuple[int, int]]]:
    """Addresses and sizes of every live tensor, by role."""
    import torch
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from vllm_omni.layout import parse

    found: dict[str, list[tuple[int, int]]] = {role: [] for role in TENSOR_ROLES}
    seen: set[int] = set()

    def add(role: str, tensor: Any) -> None:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.numel():
            return
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address and address not in seen:
            seen.add(address)
            found[role].append((address, storage.nbytes()))

    def add_packed(role: str, tensor: Any) -> None:
        address = tensor.data_ptr()
        if address in seen:
            return
        seen.update((address, tensor.untyped_storage().data_ptr()))
        codes, scales = section_ranges(parse(tensor))
        found[role] += [(address + start, size) for start, size in codes]
        found[f"scales of {role}"] += [(address + start, size) for start, size in scales]

    model = engine.model
    for name, module in model.named_modules():
        is_table = isinstance(module, VocabParallelEmbedding)
        for kind, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if "cos_sin" in kind or "rotary" in name:
                add("RoPE cache", tensor)
            elif kind == "weight_packed":
                add_packed("packed table and head" if is_table else "packed weights", tensor)
            elif is_table:
                add("plain table and head", tensor)
            else:
                add("other parameters (norms, plain scales)", tensor)
    for cache in engine.model_runner.kv_caches:
        add("KV cache", cache)
    for thing in gc.get_objects():
        # isinstance() of some proxies runs code of theirs; the type does not.
        if issubclass(type(thing), torch.Tensor):
            add("engine buffers (other tensors)", thing)
    return found


def section_ranges(
    segments: Iterable[Segment],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Offsets and sizes within a packed tensor: of headers and codes; of scales, zeros and permutations."""
    codes, scales = [], []
    for segment in segments:
        of_codes = HEADER_BYTES + segment.section_bytes[0]
        codes.append((segment.offset_bytes, of_codes))
        scales.append((segment.offset_bytes + of_codes, segment.nbytes - of_codes))
    return codes, scales


def tensor_entries(ranges: dict[str, list[tuple[int, int]]], pagemap: Pagemap) -> tuple[list[Entry], int]:
    """One entry per role, and the anonymous bytes of all of them that the allocator gave out."""
    entries, allocated = [], 0
    for role in TENSOR_ROLES:
        residency = pagemap.residency(ranges[role])
        size = sum(nbytes for _, nbytes in ranges[role])
        entries.append(Entry(role, residency.anonymous_bytes / MB, residency.file_bytes / MB, size / MB))
        if not _is_mapped(residency):
            allocated += size
    return entries, allocated


def _is_mapped(residency: Residency) -> bool:
    return residency.file_bytes > residency.anonymous_bytes


def growth_entries(
    imported: Snapshot, settled: Snapshot, tensor_bytes: int, remaining_bytes: float
) -> list[Entry]:
    """What grew since the import besides tensors; never more than ``remaining_bytes`` in all, because
    allocated is not resident."""
    wanted: list[tuple[str, float, str]] = [
        ("compiled code", settled.compiled_bytes - imported.compiled_bytes, "private pages of its files"),
        ("libraries loaded since", settled.library_bytes - imported.library_bytes, "private pages of files"),
    ]
    if settled.python_bytes is not None and imported.python_bytes is not None:
        grown = settled.python_bytes - imported.python_bytes
        wanted.append(("Python objects", grown, "arenas of the object allocator"))
    if settled.malloc is not None and imported.malloc is not None:
        now, then = settled.malloc, imported.malloc
        heap = now.in_use_bytes - then.in_use_bytes + now.mapped_bytes - then.mapped_bytes
        note = "what malloc has in use less live tensors: a difference, nobody was asked"
        wanted.append((RESIDUAL, heap - tensor_bytes, note))
    entries = []
    for name, size, note in wanted:
        counted = min(max(0.0, size), remaining_bytes)
        remaining_bytes -= counted
        entries.append(Entry(name, counted / MB, allocated_mb=max(0.0, size) / MB, note=note))
    return entries


def ledger_record(entries: Sequence[Entry], settled_bytes: int) -> dict[str, Any]:
    """Entries, their sum, and what they do not explain."""
    total = settled_bytes / MB
    attributed = sum(entry.anonymous_mb for entry in entries)
    rest = total - attributed
    residual = sum(entry.anonymous_mb for entry in entries if entry.name == RESIDUAL)
    return {
        "rss_anon_tree_mb": total,
        "attributed_mb": attributed,
        "unattributed_mb": rest,
        "unattributed_share": rest / total,
        "unattributed_with_residual_mb": rest + residual,
        "unattributed_share_with_residual": (rest + residual) / total,
        "mapped_mb": sum(entry.mapped_mb for entry in entries),
        "entries": [asdict(entry) for entry in entries],
    }


def rest_note(entries: Sequence[Entry], unattributed_mb: float) -> str:
    """What nothing explains; or, where the allocators gave out more than is resident, how much that is."""
    kept = sum(entry.anonymous_mb for entry in entries if entry.note and entry.allocated_mb is not None)
    given = sum(entry.allocated_mb or 0.0 for entry in entries if entry.note)
    if given > kept:
        return (
            f"{given - kept:.1f} MB of native allocations since the import are not resident, or came from "
            "free memory that the import had left: they explain nothing"
        )
    return (
        f"{unattributed_mb:.1f} MB are unattributed: data of imported libraries written since, thread "
        "stacks, free chunks between used ones"
    )


def run(options: argparse.Namespace, output: Output) -> None:
    generate = 8
    if options.context_len <= generate:
        raise OmniError(f"--context-len {options.context_len}: expected more than {generate}")
    marks = MemoryMarks()
    marks.mark("before import")
    arm.import_engine(marks)
    gc.collect()
    imported = Snapshot.take()
    from benchmarks.edge_harness.measure import engine as engine_module

    extra: dict[str, Any] = json.loads(options.engine_args)
    arguments = engine_module.engine_arguments(options.model, options.context_len, 1, extra)
    engine = engine_module.InProcessEngine(arguments, marks.mark)
    engine.run(
        engine.random_ids(options.context_len - generate, 1),
        generate,
        before_last=lambda: marks.mark("at context"),
    )
    gc.collect()
    before_trim = monitor.process_memory(pss=False).rss_anon_bytes
    trimmed = monitor.trim()
    settled = Snapshot.take()
    with Pagemap() as pagemap:
        tensors, tensor_bytes = tensor_entries(tensor_ranges(engine), pagemap)
    slack = before_trim - trimmed.rss_anon_after_bytes
    entries = [
        Entry("imports", imported.rss_anon_bytes / MB, note="interpreter, torch and vLLM, before the engine"),
        *tensors,
        Entry("allocator slack", slack / MB, note="what malloc_trim gave back"),
    ]
    remaining = before_trim - sum(entry.anonymous_mb for entry in entries) * MB
    entries += growth_entries(imported, settled, tensor_bytes, max(0.0, remaining))
    kv = next(entry for entry in tensors if entry.name == "KV cache")
    record = ledger_record(entries, before_trim)
    record |= {
        "kv_allocated_mb": kv.allocated_mb,
        "kv_resident_mb": kv.anonymous_mb,
        "trim_mb": slack / MB,
        "context_tokens": options.context_len,
        "largest_mappings": largest_mappings(monitor.smaps_ledger()),
        "phases": marks.phases,
        "process": engine.process_facts(),
        "threads": arm.thread_count(),
        "stock": options.stock,
        "engine_arguments": arguments | {"model": options.model.resolve().name},
        "notes": [
            rest_note(entries, record["unattributed_mb"]),
            f"{record['unattributed_with_residual_mb']:.1f} MB "
            f"({record['unattributed_share_with_residual']:.1%}) have no known owner: unattributed, and what "
            "malloc has in use beyond live tensors",
            *([trimmed.note] if trimmed.note else []),
        ],
        **binding_record(options),
    }
    output.emit(record)
    engine.close()


def largest_mappings(mappings: Iterable[Any], count: int = 15) -> list[dict[str, Any]]:
    """By anonymous bytes; of a file its own name alone."""
    ordered = sorted(mappings, key=lambda m: -m.anon_bytes)[:count]
    return [
        {
            "kind": m.kind,
            "name": Path(m.name).name,
            "anonymous_mb": m.anon_bytes / MB,
            "rss_mb": m.rss_bytes / MB,
        }
        for m in ordered
    ]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.edge_harness.measure.ledger")
    made.add_argument("--model", type=Path, required=True, metavar="DIR")
    made.add_argument("--context-len", type=int, default=1536)
    arm.add_engine_options(made)
    return made


def main(arguments: list[str] | None = None) -> int:
    return arm.run_program(parser().parse_args(arguments), run)


if __name__ == "__main__":
    sys.exit(main())
