"""What the notebook puts in the place of the process's streams is an object as any other."""

from __future__ import annotations

from pathlib import Path

import pytest

import child

pytest.importorskip("cloudpickle")
pytest.importorskip("yaml")

SCRIPT = """
import json, sys
from pathlib import Path
import harness
kernel = harness.Kernel(Path(sys.argv[1]))
kernel.log.create()
cells = [
    "class Tee:\\n    def __init__(s, *of): s.of, s.seen = of, []\\n    def write(s, text): s.seen.append(text); return len(text)\\n"
    "    def flush(s): pass\\ntee, extra = Tee(1), Tee(2)",
    "import yaml\\nx = [1]",
    "tee.seen.append('more'); extra.of = (3,)",
]
own = sys.stdout
for source in cells:
    assert kernel.run(source), kernel.error
    sys.stdout = kernel.ns["tee"]
    kernel.snap(source)
    sys.stdout = own
print("\\x1e" + json.dumps({name: gone.why for unit in kernel.capture.units.values() for gone in unit.gone for name in unit.names}))
"""


def test_an_object_in_the_place_of_a_stream_is_saved_and_others_of_its_class_too(tmp_path: Path) -> None:
    said, errors = child.answer(SCRIPT, str(tmp_path), base=tmp_path)
    assert said == {}, errors
