"""The bundled archives of simulated probes need no model, and are small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "samples" / "recorded"


@pytest.mark.integration
def test_they_need_no_model(tmp_path: Path) -> None:
    """`assess`, with its page, and `calibrate` of an archive load no torch."""
    pytest.importorskip("matplotlib", reason="matplotlib (extra report) draws the page")
    code = (
        "import sys\n"
        "from stopadvisor.cli.main import main\n"
        "assert main(['assess', sys.argv[1], *'--families confidence --alpha 0.15'.split()]) == 0\n"
        "assert main(['calibrate', '--alpha', '0.15', '--despite', 'large-alpha']) in (0, 3)\n"
        "assert {'matplotlib', 'jinja2'} <= set(sys.modules)\n"
        "assert not {'torch', 'transformers', 'sklearn'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(RECORDED / "unsolved.npz")],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Its confidence knows where to stop, although the mix speaks for full thinking.
    assert "Stop early" in done.stdout


def test_they_are_small() -> None:
    assert sum(file.stat().st_size for file in RECORDED.iterdir()) < 1_000_000
