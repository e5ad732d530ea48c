"""Counts the instructions of each kernel under callgrind, and compares them with the tracked counts.

Valgrind shows a CPU without AVX-VNNI, AVX-512 and AMX, so the portable and the AVX2 kernels are what is
counted. A count is the work of one call, preparation of activations included. Speed and load of the
machine do not enter it; the compiler does.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACKED = ROOT / "rust/int4-kernels/instruction_counts.json"
EXAMPLE = "instruction_count"
COUNTED = f"{EXAMPLE}::counted_call*"
TOLERANCE = 0.02


class Failure(Exception):
    """What is wrong, in one line."""


def build() -> Path:
    """The driver as an executable, by cargo's own word on where it is."""
    command = ["cargo", "build", "--release", "--package", "int4-kernels", "--example", EXAMPLE]
    run = subprocess.run(
        [*command, "--message-format", "json-render-diagnostics"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    if run.returncode:
        raise Failure(f"{' '.join(command)}: exit code {run.returncode}")
    for line in run.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == EXAMPLE:
            return Path(message["executable"])
    raise Failure(f"cargo built no executable of the example {EXAMPLE}")


def instructions(text: str) -> int:
    """Of one dump of callgrind."""
    found = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
    if found is None:
        raise Failure("a dump of callgrind has no total")
    return int(found[1])


def valgrind(*command: str) -> str:
    """Standard output of a command under valgrind."""
    run = subprocess.run(["valgrind", "--quiet", *command], capture_output=True, text=True)
    if run.returncode:
        raise Failure(f"valgrind {' '.join(command)}: exit code {run.returncode}: {run.stderr.strip()}")
    return run.stdout


def count(driver: Path, folder: Path) -> dict[str, int]:
    """Instructions by `{kernel} {rows}`, of the kernels that the driver finds under valgrind."""
    counts = {}
    dump = folder / "dump"
    for name in valgrind("--tool=none", str(driver)).splitlines():
        options = (f"--toggle-collect={COUNTED}", f"--callgrind-out-file={dump}")
        valgrind("--tool=callgrind", *options, str(driver), *name.split())
        counts[name] = instructions(dump.read_text())
        if not counts[name]:
            raise Failure(f"{name}: callgrind met no call of {COUNTED}")
    return counts


def compare(tracked: dict[str, int], found: dict[str, int]) -> tuple[list[str], list[str]]:
    """The table, and what is wrong with it: a count off by more than the tolerance, or on one side alone."""
    table = [f"{'kernel':<24} {'rows':>4} {'tracked':>12} {'found':>12} {'change':>8}"]
    wrong = []
    for name in sorted(
        tracked.keys() | found.keys(), key=lambda name: (name.split()[0], int(name.split()[1]))
    ):
        kernel, rows = name.split()
        before, now = tracked.get(name), found.get(name)
        change = ""
        if before is None or now is None:
            wrong.append(f"{name}: {'not tracked' if before is None else 'not counted'}")
        else:
            change = f"{now / before - 1:+.2%}"
            if abs(now - before) > TOLERANCE * before:
                wrong.append(f"{name}: {now} instructions instead of {before} ({change})")
        table.append(f"{kernel:<24} {rows:>4} {before or '-':>12} {now or '-':>12} {change:>8}")
    return table, wrong


def compiler() -> str:
    return subprocess.run(
        ["rustc", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def run(is_update: bool) -> None:
    if shutil.which("valgrind") is None:
        raise Failure("counting instructions needs valgrind: apt-get install -y valgrind")
    with tempfile.TemporaryDirectory() as folder:
        found = count(build(), Path(folder))
    if not any(name.startswith("avx2-") for name in found):
        raise Failure("no AVX2 kernel was counted: this CPU lacks AVX2, FMA or F16C")
    if is_update:
        TRACKED.write_text(json.dumps({"compiler": compiler(), "instructions": found}, indent=2) + "\n")
        print(f"{TRACKED.relative_to(ROOT)}: {len(found)} counts")
        return
    tracked = json.loads(TRACKED.read_text())
    table, wrong = compare(tracked["instructions"], found)
    print("\n".join(table))
    if wrong:
        differs = (
            ""
            if compiler() == tracked["compiler"]
            else f" (tracked: {tracked['compiler']}; this: {compiler()})"
        )
        limit = f"{TOLERANCE:.0%}"
        raise Failure(f"{len(wrong)} counts are off by more than {limit}{differs}: " + "; ".join(wrong))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make instruction-count", description=__doc__)
    parser.add_argument("--update", action="store_true", help="track what is counted now")
    try:
        run(parser.parse_args(arguments).update)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
