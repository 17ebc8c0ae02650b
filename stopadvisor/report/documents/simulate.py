"""What `simulate --json` prints: the made-up model that was drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stopadvisor.probes.simulation import KINDS, Population
from stopadvisor.report.documents.fields import Document, fill

__all__ = ["SimulateDocument", "simulation_document"]


class SimulateDocument(Document):
    """`simulate --json`."""

    simulated: Annotated[bool, "Always true."]
    out: Annotated[str, "Run directory or archive."]
    full_reference: Annotated[str, "What full thinking is in it: `natural` or `last-checkpoint`."]
    n_questions: Annotated[int, "Questions drawn."]
    budgets: Annotated[list[int], "Thinking tokens at each checkpoint."]
    shares: Annotated[
        dict[str, float], "Of each kind of question, as asked for; a draw differs by chance."
    ]
    signal: Annotated[float, "How far the confidence tells right from wrong, in log-odds."]
    seed: Annotated[int, "Of all that is drawn."]


def simulation_document(
    out: Path, population: Population, n_questions: int, seed: int, *, archive: bool
) -> SimulateDocument:
    """Build the document of what was drawn into `out`."""
    return fill(
        SimulateDocument,
        population,
        simulated=True,
        out=out,
        full_reference="last-checkpoint" if archive else "natural",
        n_questions=n_questions,
        shares={kind: population.shares.get(kind, 0.0) for kind in KINDS},
        seed=seed,
    )
