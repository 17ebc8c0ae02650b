"""What a rule can see at each question's own positions, apart from what stopping there leads to.

Arrays are padded to (n_questions, n_probes), with a mask `live`: a probe that is not live does not
happen, so it neither trains nor stops.  `Observed` is all that a score may read.  `Consequences`
says what stopping costs and whether it loses; only fit and calibration questions may show it.
Knows nothing of scores, thresholds or certificates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from tests.benchmarks.real_rivals import CUE_TOKENS
from tests.benchmarks.real_traces import Traces, Waits

__all__ = ["Consequences", "Observed", "Picked", "ProbesMade", "on_grid", "when_waiting"]

_UNKNOWN_LOGPROB = -1.0
"""Nats; stands where no probe is, and no score is read there."""


@dataclass(frozen=True)
class Observed:
    """The probes of a schedule as a rule sees them."""

    live: BoolArray  # (n_questions, n_probes)
    position: IntArray  # (n_questions, n_probes)
    """Thinking tokens before the probe."""
    code: IntArray  # (n_questions, n_probes)
    """0 for no answer; within a question, equal numbers are equal answers."""
    markers: IntArray  # (n_questions, n_probes)
    """Words of doubt, such as "Wait", in the thinking so far."""
    logprob: FloatArray | None  # (n_questions, n_probes)
    """Mean log-probability of the answer, in nats; None where it was not recorded."""
    capped: bool = False
    """The last column is the cap: whoever reaches it stops there, whatever the score."""

    @property
    def scored(self) -> BoolArray:
        """Where a score decides, (n_questions, n_probes): live, and not the cap."""
        if not self.capped:
            return self.live
        scored = self.live.copy()
        scored[:, -1] = False
        return scored


@dataclass(frozen=True)
class Consequences:
    """What stopping at each probe leads to."""

    correct: BoolArray  # (n_questions, n_probes)
    full_correct: BoolArray  # (n_questions,)
    cost: FloatArray  # (n_questions, n_probes + 1)
    """Tokens, probes included.  The last column never stops."""

    @property
    def lost(self) -> BoolArray:
        """Full thinking is right, the answer given is wrong; (n_questions, n_probes + 1)."""
        lost = np.zeros(self.cost.shape, dtype=bool)
        lost[:, :-1] = self.full_correct[:, None] & ~self.correct
        return lost

    @property
    def keeps(self) -> BoolArray:
        """Nothing is lost by stopping: right, or full thinking is wrong too; as `correct`."""
        return self.correct | ~self.full_correct[:, None]


@dataclass(frozen=True)
class Picked:
    """The probes of one schedule."""

    seen: Observed
    then: Consequences


@dataclass(frozen=True)
class ProbesMade:
    """Every probe that was recorded, before a schedule picks among them; 0 where not live."""

    live: BoolArray  # (n_questions, n_probes)
    position: IntArray  # (n_questions, n_probes)
    code: IntArray  # (n_questions, n_probes)
    correct: BoolArray  # (n_questions, n_probes)
    probe_tokens: IntArray  # (n_questions, n_probes)
    """Tokens decoded for the answer."""
    markers: IntArray  # (n_questions, n_probes)
    logprob: FloatArray | None  # (n_questions, n_probes)
    traces: Traces

    def pick(
        self, keep: BoolArray, prefill: float, cap: ProbesMade | None = None, column: int = -1
    ) -> Picked:
        """The probes that `keep` names, then one at the cap.

        Parameters
        ----------
        keep : ndarray of bool, shape (n_questions, n_probes)
            Those that are not live are left out.
        prefill : float
            Cost of a token that is read; one that is decoded costs 1.
        cap : ProbesMade or None
            The probes among which the cap's stand, in one `column` for all questions.
        """
        keep = keep & self.live
        n_kept = max(1, int(keep.sum(axis=1).max()))
        order = np.argsort(~keep, axis=1, kind="stable")[:, :n_kept]  # kept ones first
        here = np.take_along_axis(keep, order, axis=1)  # (n_questions, n_kept)

        def line_up(read: Callable[[ProbesMade], NDArray[Any]]) -> NDArray[Any]:
            """Kept values in a row, (n_questions, n_kept), or one more column with a cap."""
            values = read(self)
            nothing = np.zeros((), values.dtype)
            kept = np.where(here, np.take_along_axis(values, order, axis=1), nothing)
            if cap is None:
                return kept
            last = np.where(cap.live[:, column], read(cap)[:, column], nothing)
            return np.column_stack([kept, last])

        live = line_up(lambda made: made.live)
        position = line_up(lambda made: made.position)
        tokens = line_up(lambda made: made.probe_tokens)
        correct = line_up(lambda made: made.correct)
        logprob = None
        if self.logprob is not None:
            found = np.take_along_axis(self.logprob, order, axis=1)
            logprob = np.where(here, found, _UNKNOWN_LOGPROB)
            if cap is not None:  # nobody needs to be sure there
                logprob = np.column_stack([logprob, np.full(len(live), _UNKNOWN_LOGPROB)])
        seen = Observed(
            live,
            position,
            line_up(lambda made: made.code),
            line_up(lambda made: made.markers),
            logprob,
            capped=cap is not None,
        )
        spent = np.cumsum(np.where(live, tokens + prefill * CUE_TOKENS, 0.0), axis=1)
        stopped = position + spent + prefill * self.traces.prompt_tokens[:, None]
        full = self.traces.full_cost(prefill) + spent[:, -1]
        cost = np.column_stack([stopped, full])
        return Picked(seen, Consequences(correct & live, self.traces.full_correct, cost))


def on_grid(traces: Traces) -> ProbesMade:
    """The forced answers, at the positions that all questions share."""
    live = traces.live
    return ProbesMade(
        live,
        np.where(live, traces.positions, 0),
        np.where(live, traces.codes, 0),
        traces.codes == 1,
        np.where(live, traces.probe_tokens, 0),
        traces.markers,
        None,
        traces,
    )


def when_waiting(traces: Traces, waits: Waits) -> ProbesMade:
    """The trial answers at "Wait", each with the markers counted at the grid position before."""
    live, step = waits.live, int(traces.positions[0])
    column = np.clip(waits.positions // step - 1, 0, traces.positions.size - 1)
    counted = np.take_along_axis(traces.markers, column, axis=1)
    return ProbesMade(
        live,
        np.where(live, waits.positions, 0),
        np.where(live, waits.codes, 0),
        waits.codes == 1,
        np.where(live, waits.probe_tokens, 0),
        np.where(waits.positions >= step, counted, 0),
        np.where(live, waits.mean_logprob, _UNKNOWN_LOGPROB),
        traces,
    )
