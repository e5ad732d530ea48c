"""``vllm-omni make-model GEOMETRY DIR``."""

from __future__ import annotations

from pathlib import Path


def run(
    geometry: str,
    out_dir: Path,
    *,
    format: str,
    seed: int,
    group_size: int | None,
    head_bits: int | None,
    quantized_weights: bool,
) -> None:
    """Make a model folder with random weights and print a summary.

    Raises ``OmniError`` with one line that says what is wrong; the target is then absent, as after an
    interruption.
    """
    # The tensor libraries take seconds to load: an existing target is told before.
    from vllm_omni.checkpoints.atomic_folder import refuse_existing

    refuse_existing(out_dir)
    from rich.console import Console

    from vllm_omni.checkpoints.synthetic.make import make_model
    from vllm_omni.checkpoints.synthetic.recipe import Recipe
    from vllm_omni.cli.import_ import Reporter

    recipe = Recipe.checked(
        geometry,
        format=format,
        seed=seed,
        group_size=group_size,
        head_bits=head_bits,
        quantized=quantized_weights,
    )
    with Reporter(Console(stderr=True), verb="writing") as reporter:
        summary = make_model(recipe, out_dir, reporter.update)
    kind = format if not quantized_weights else f"{format} of the quantized weights"
    print(
        f"made {geometry} ({summary.parameters / 1e6:.1f} M random weights, seed {seed}, {kind}) in {out_dir}"
    )
    print(f"  {summary.folder_bytes / 1e6:.1f} MB, {summary.seconds:.1f} s")
    print(f"  original weights sha256 {summary.weights_sha256}")
    if summary.note:
        print(f"  {summary.note}")
