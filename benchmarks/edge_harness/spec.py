"""A grid's specification: arms and how they are compared, in JSON or TOML."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchmarks.edge_harness.metrics import Direction, Metric
from vllm_omni.errors import OmniError

DEFAULT_PASSES = 7

Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]


class Strict(BaseModel):
    """Unknown keys are errors: a mistyped option must not silently do nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Workload(Strict):
    """What an adapter's program does in one process. Token counts are exact."""

    prompt_tokens: int = Field(512, ge=1)
    decode_tokens: int = Field(128, ge=2)
    depth: int = Field(0, ge=0, description="tokens in the KV cache before the measured ones")
    batch: int = Field(1, ge=1)
    repeats: int = Field(3, ge=1, description="measured repetitions after the warm-up")
    context_len: int | None = Field(None, ge=16, description="default: what the workload needs")
    empty_cache: bool = Field(False, description="measure decode on an empty KV cache; the artifact says so")


class MetricDeclaration(Strict):
    """Unit and direction of a metric of the arms' own."""

    unit: str = ""
    direction: Direction
    meaning: str = ""
    needs_warm_cache: bool = False
    band_pct: float | None = Field(None, gt=0)

    def metric(self, name: str) -> Metric:
        return Metric(name, self.unit, self.direction, self.meaning, self.needs_warm_cache, self.band_pct)


class Arm(Strict):
    """One way to run: a command line, or an adapter with a model.

    ``declares`` states what must have run (for instance ``{"weight_bits": 4, "head_bits": 8}``); a run whose
    program reports something else under ``ran`` is invalid. ``unavailable`` keeps an arm that does not exist
    yet in the spec and in the artifact, with the reason, and never runs it.
    """

    tag: Tag
    command: list[str] | str | None = None
    adapter: str | None = None
    model: str | None = None
    workload: Workload = Workload()
    options: dict[str, Any] = {}
    env: dict[str, str] = {}
    declares: dict[str, Any] = {}
    unavailable: str | None = None

    @model_validator(mode="after")
    def _one_way_to_run(self) -> Arm:
        given = [name for name in ("command", "adapter", "unavailable") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"expected one of command, adapter, unavailable; found {found}")
        return self


class Spec(Strict):
    """Arms, and the defaults that the command line may override. The first arm is the baseline."""

    title: str = ""
    arms: list[Arm] = Field(min_length=1)
    metric: str | None = None
    metrics: dict[str, MetricDeclaration] = {}
    passes: int = Field(DEFAULT_PASSES, ge=1)
    cores: str | None = None
    timeout_s: float = Field(2400.0, gt=0)
    settle_s: float = Field(2.0, ge=0)
    verification: Literal["required", "if_reported", "ignored"] = "if_reported"
    logprob_tolerance_nats: float = Field(0.05, gt=0)

    @model_validator(mode="after")
    def _tags_are_unique(self) -> Spec:
        tags = [arm.tag for arm in self.arms]
        twice = sorted({tag for tag in tags if tags.count(tag) > 1})
        if twice:
            raise ValueError(f"expected every tag once; found {', '.join(twice)} again")
        return self

    @model_validator(mode="after")
    def _is_json(self) -> Spec:
        """Options may be anything that an artifact can hold."""
        try:
            json.dumps(self.model_dump(), allow_nan=False, default=str)
        except ValueError as error:
            raise ValueError("expected finite numbers; found one that is not") from error
        return self

    def declared_metrics(self) -> dict[str, Metric]:
        return {name: declaration.metric(name) for name, declaration in self.metrics.items()}

    def sha256(self) -> str:
        """Digest of the meaning: key order and spelling of the file do not matter."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_spec(path: Path) -> Spec:
    """Read ``path`` (``.json`` or ``.toml``). Raises :class:`OmniError` naming what is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OmniError(f"{path}: expected a readable spec: {error.strerror}") from error
    try:
        content = tomllib.loads(data.decode()) if path.suffix == ".toml" else json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise OmniError(f"{path}: expected {kind}: {error}") from error
    try:
        return Spec.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the spec"
        raise OmniError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from error
