"""No artifact names a user's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.edge_harness.provenance import scrub as module
from benchmarks.edge_harness.provenance.scrub import scrub, user_paths


@pytest.fixture(autouse=True)
def _folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPOSITORY", Path("/srv/checkout"))
    monkeypatch.setattr(Path, "home", lambda: Path("/home") / "somebody")


HOME = "/home" + "/somebody"
ROOT = "/root"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/checkout/.venv/bin/python", "./.venv/bin/python"),
        ("/srv/checkout", "."),
        ("/srv/checkouts/x", "/srv/checkouts/x"),
        (f"--model={HOME}/models/a", "--model=~/models/a"),
        (f"{HOME}/a:{HOME}/b", "~/a:~/b"),
        (f"{HOME}body/secret/model", "…/model"),
        (f"{ROOT}/x/model", "…/model"),
        ("/tmp/run-1/out.json", "…/out.json"),
        ("/usr/lib/libtcmalloc.so", "/usr/lib/libtcmalloc.so"),
        ("./tmp/relative ~/tmp/home", "./tmp/relative ~/tmp/home"),
        ("a/b and 3/4", "a/b and 3/4"),
        (f"-I{HOME}body/include", "-I…/include"),
        (f"/gpfs{HOME}body/model", "…/model"),
        (f"/var{HOME}body/model", "…/model"),
        ("/workspace/x/model", "…/model"),
        (f"{ROOT}/.cache", "…/.cache"),
        (f"in {HOME}body", "in …"),
        (f"src{HOME}body/x", f"src{HOME}body/x"),
        ("https://host/home/x", "https://host/home/x"),
    ],
)
def test_paths(text: str, expected: str) -> None:
    assert scrub(text) == expected
    # And what is scrubbed is what verification takes.
    assert list(user_paths([{expected: expected}])) == []
    assert scrub(expected) == expected


def test_paths_are_found_in_texts_and_keys() -> None:
    found = [{"a": [f"x {HOME}/m"], f"{HOME}/k": 1}]
    assert list(user_paths(found)) == [f"{HOME}/m", f"{HOME}/k"]
