"""Mistakes in statistics that no test can detect."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, dict[str, str]] = {
    "stats/adaptive_labels": {
        "AskingPlan.labelled: self.labels is None or not self.is_sample ->": (
            "the first N of fewer are all of them"
        ),
        ": (0.6, 1.0) ->": "another share is about as good",
        ": 1 / 2 ->": "another assumption about the unknown",
        ": 1 / 4 ->": "another assumption about the unknown",
        ": 1 / 8 ->": "another assumption about the unknown",
        ": 3 / 4 ->": "another assumption about the unknown",
        ": _AHEAD = 0.5 ->": "a twentieth of a point more is fine",
        ": _DRAWS = 8 ->": "one draw more is fine",
        "forecast: often > 0 -> often >= 0": "no draw asks for more than all draws together",
        "forecast: often[end.asked] += 1 ->": "only their order counts",
        "forecast: rng.random(known.size) < share ->": "differs with probability 0",
        "forecast: tests: Sequence[LabelTest]": "one draw more is fine",
        "preferred_sample: rng.random(n) < share ->": "differs with probability 0",
        "preferred_sample: saved[best] - saved[0] > ": "differs at equality, by rounding",
        "preferred_sample: size < n -> size <= n": "a sample of all is no sample",
    },
    "stats/binomial": {
        "binomial_mass: initial=0 ->": "a longer table gives the same",
        "log_factorials: n + 1 -> n + 2": "a longer table gives the same",
        "binomial_tail: term < 1e-18 ->": (
            "such a term adds less than the claimed precision, 1e-10"
        ),
    },
    "stats/bounds": {
        "Certified.risk: self.differing is not None and self.planned_labels is not None ->"
        " self.differing is not None or": "both are set, or neither",
        "StopCurve.stops: index < self.high ->": (
            "where one interval ends, an earlier one holds the index"
        ),
        "labels_needed.reaches: float(scipy.stats.binom.cdf(losses, size, expected_risk)) >="
        " power_wanted ->": "differs at equality, by rounding",
        "labels_needed: (-1, 0) ->": "ends the same way",
        "labels_needed: -1 -> -2": "ends the same way",
        "labels_needed: 2 * high + 1 -> 2 * high + 2": "ends the same way",
        "labels_needed: more=1 -> more=2": "ends the same way",
        ": _MOST_LABELS = 1000000 ->": "one size more is fine",
        "_last_size: 2 * (losses + 1) -> 3": "ends the same way",
        "_last_size: 2 * high -> 3 * high": "ends the same way",
        "_last_size: losses + 1 -> losses + 2 (2)": "ends the same way",
        "_last_size: losses + 1 -> losses - 1": "ends the same way",
        "_last_size: max(2 * (losses + 1), 1) -> max(2 * (losses + 1), 2)": "ends the same way",
        "labels_needed: 2 * high -> 3 * high": "ends the same way",
        "labels_needed: high - low > 1 -> high - low > 2": "ends the same way",
        "labels_needed: high > 0 -> high >= 0": "losses are never negative",
        "labels_needed: needed <= _MOST_LABELS ->": "one size less is fine",
    },
    "stats/exchangeability": {
        ": _MOST = 1000000000000.0 ->": "another cap is fine",
        ": _REMEMBERED = 8192 ->": "the cache changes no number",
        "ExchangeabilityTest._place: len(self._places) >= _REMEMBERED ->": (
            "the cache changes no number"
        ),
        "ExchangeabilityTest.update: capital > _MOST ->": "scaled by 1 then",
    },
    "stats/intervals": {
        ": 1 - 1e-12 -> 1 - 1e-09": "limits are found to 1e-9 of a share at best",
        ": MOST_BLOCKS = 2000 ->": "one block more is fine",
        "paired_difference.score: (estimate - difference) * math.sqrt(n / variance) if"
        " variance > 0 else 0.0 ->": (
            "without disagreement the search only needs its sign, compared with a quantile"
        ),
        "paired_difference: score(-_EDGE) > z ->": "differs at equality, by rounding",
        "paired_difference: score(_EDGE) < -z -> score(_EDGE) <=": (
            "differs at equality, by rounding"
        ),
        "saving_interval: errors <= 1e-06 * abs(ratio) ->": (
            "at the limit only where both are 0, to which it is set"
        ),
        "saving_interval: np.abs(distance) <= 1e-09 * abs(ratio) ->": (
            "at the limit only where both are 0, to which it is set"
        ),
        "saving_band: ddof=1 -> ddof=2": (
            "deviations are measured in units of the error, and scaled back by it"
        ),
        "saving_band: posinf=0.0 -> posinf=0.1": (
            "a tenth of an error is not among the largest deviations"
        ),
    },
    "stats/label_sample": {
        "sample_limit: high - low > 0.0001 -> high - low >=": "differs at equality, by rounding",
        "_chance: np.clip(passes, 0.0, 1.0) -> np.clip(passes, 0.0,": "above 1 only by rounding",
        "_is_at_most: _FIRST + 1 ->": "another grid bounds just as well",
        "_region: allowed + 1e-09 ->": "both are rounding",
        ": _BEYOND = 1e-12 ->": "less than the precision of a bound",
        ": _FIRST = 32 ->": "another grid bounds just as well",
        ": _REACH = 9.0 ->": "less lies there than is added for it",
        ": _STEPS = 14 ->": "one step more is fine",
        ": _WIDEST = 16.0 ->": "the search ends the same way",
        "_chance: 1 - q -> 1 + q": "a wider range",
        "_chance: 1 - q -> 2 - q": "a wider range",
        "_chance: _REACH ** 2 -> _REACH ** 3": "a wider range",
        "_chance: _REACH ** 2 / 2 -> _REACH ** 2 * 2": "a wider range",
        "_chance: _REACH ** 2 / 2 -> _REACH ** 2 / 3": (
            "still less lies beyond it than is added for it"
        ),
        "_chance: chance + _BEYOND ->": "less than the precision of a bound",
        "_chance: differing > labels -> differing >= labels": "both formulas give the same there",
        "_chance: labels + 1 -> labels + 2": "the last column is not read",
        "_chance: n * q -> n / q": "a wider range",
        "_is_at_most: (right / left).min() < 1 + _NARROWEST ->": "differs at equality, by rounding",
        "_is_at_most: _chances(most, labels, left, alpha / left) > delta ->": (
            "differs at equality, by rounding"
        ),
        "_is_at_most: high > delta ->": "differs at equality, by rounding",
        "_most_of_all: -1 -> -2": "ends the same way",
        "_most_of_all: binomial_tail(middle, n, alpha) <= delta ->": (
            "differs at equality, by rounding"
        ),
        "most_lost_labelled: (math.inf, 0.0, _WIDEST) ->": "the search ends the same way",
        "most_lost_labelled: labels < n -> labels <= n": "then no reply lies beyond the labels",
    },
    "stats/sequential": {
        "AuditProcess.count: requests > 1 -> requests >= 1": "1 was counted before",
        "AuditProcess.resolve: loss > least -> loss >=": "the least loss changes nothing",
        "AuditProcess.resolve: loss > least and next(reversed(self._open)) != key ->"
        " loss > least or": "nothing follows the last audit, and the least loss changes nothing",
        "requests_to_alarm: np.random.default_rng(0) ->": "other streams are as good",
        "requests_to_alarm: rng.random((draws, events)) < up / (up + down) ->": (
            "a draw equals a share with probability 0"
        ),
        "AuditProcess.__post_init__: self._limit = -math.log(": "it only saves the exact sum",
        ": _MOST_SUM = 1e+300 ->": "as far from any limit",
        "AuditProcess.has_changed: sum(self.sums) / len(self.sums) >= self.test.change ->": (
            "differs at equality, by rounding"
        ),
        "AuditProcess.is_broken: max(self.logs) >= self._limit ->": (
            "differs at equality, by rounding"
        ),
        "AuditProcess.is_broken: self.e_value >= 1 / self.test.delta ->": (
            "differs at equality, by rounding"
        ),
        "AuditTest: change: float = 100000.0 ->": "every caller gives it",
        "AuditTest: delta: float = 0.05 ->": "every caller gives it",
        "AuditTest: least_share: float = 0.02 ->": "every caller gives it",
        "_root: (1e-12, math.nextafter(1, 0)) ->": "no root lies that low",
        "_root: 1e-10 * low -> 1.0000000000000001e-07": "precise enough for a share",
        "_root: 1e-12 + 1e-10 * low -> 1e-09": "precise enough for a share",
        "_root: excess(high) <= 0 -> excess(high) <": "differs at equality, by rounding",
        "_root: excess(middle) < 0 -> excess(middle) <=": "differs at equality, by rounding",
        "_root: high - low > 1e-12 + 1e-10 * low ->": "differs at equality, by rounding",
        "requests_to_alarm: (300, 2400) ->": "one loss more is fine",
        "requests_to_alarm: (301, math.inf) ->": "one stream more is fine",
        "requests_to_alarm: evidence >= ": "differs at equality, by rounding",
    },
    "stats/trinomial": {
        "drop_size: 0.001 / n ->": "half an interval is shorter",
        "drop_size: -2 -> -3": "the corner begins as close to the end, and decides no size",
        ": _REACH = 9.0 ->": "less lies there than any precision",
        ": _ROUNDING = 1e-09 ->": "less than the precision of a bound",
        ": _SPACING = 0.037 ->": "a grid that is about as fine",
        ": _STEPS = 13 ->": "one step more is fine",
        "_chance: rows = 24 ->": "another number of neighbours is fine",
        "_likely: 1 - high -> 1 + high": "a wider range",
        "_likely: 1 - high -> 2 - high": "a wider range",
        "_likely: 1 - low -> 1 + low": "a wider range",
        "_likely: 1 - low -> 2 - low": "a wider range",
        "_likely: low < 0.5 < high -> low < 0.5 <=": "both ranges are wide enough there",
        "_likely: low < 0.5 < high -> low < 0.55": "both ranges are wide enough there",
        "_likely: low < 0.5 < high -> low <= 0.5": "both ranges are wide enough there",
        "_likely: math.sqrt(n * max(high * (1 - high), low * (1 - low), 0.0)) + 1 ->"
        " math.sqrt(n * max(high * (1 - high), low * (1 - low), 0.0)) + 2": "a wider range",
        "_likely: math.sqrt(n) / 2 + 2 -> math.sqrt(n) / 2 + 3": "a wider range",
        "_likely: math.sqrt(n) / 2 -> math.sqrt(n) * 2": "a wider range",
        "_likely: max(high * (1 - high), low * (1 - low), 0.0) ->": "a wider range",
        "_region: _score(middle, changed - middle, n, alpha) <= critical ->": (
            "differs at equality, by rounding"
        ),
        "_score: (1 - alpha) / 2 -> (1 - alpha) * 2": "the estimate lies below but for rounding",
        "_score: 1 - alpha -> 2 - alpha (3)": "the estimate lies below but for rounding",
        "_score: np.maximum(variance, 1e-300) ->": "a variance of 0 in any case",
        "_test: (-8.0, 0.0) ->": "the search ends the same way",
        "_test: -40 -> -41": "as far from any rejection",
        "_test: -8.0 ->": "the search ends the same way",
        "_test: 16 + math.ceil(4 * math.sqrt(n)) -> 17": "a share more is tried",
        "_test: 4 * math.sqrt(n) -> 5": "more shares are tried",
        "_test: _tried(_region(n, alpha, middle), alpha, few) <= delta ->": (
            "differs at equality, by rounding"
        ),
        "_test: drop_size((found := _region(n, alpha, low)), alpha) > delta ->": (
            "differs at equality, by rounding"
        ),
        "_test: low < -40 -> low <=": "differs at equality, by rounding",
        "_tried: -1 -> -2": "a share less is tried",
        "_tried: 1:-1 -> 2:-1": "a share less is tried",
        "_tried: n_points + 2 -> n_points + 3": "a share more is tried",
        "drop_limit: -0.999 ->": "the limit lies above",
        "drop_limit: high - low > 0.0001 -> high - low >=": "differs at equality, by rounding",
        "drop_limit: quick=True ->": "slower, and as good",
        "drop_passes: _tried(most, alpha, 96) ->": "a share more is tried",
        "drop_size: max(16, math.ceil(math.pi / 2 * math.sqrt(n) / _SPACING)) ->": (
            "even one question has more points"
        ),
        "drop_size: open_[0] -> open_[1]": (
            "the corner is never the highest chance (n to 75, ten alphas, four deltas)"
        ),
        "drop_limit: min(high, 1.0) ->": "the search begins at 0.99 and hardly goes above it",
        "limit_of_pairs: -1e-12 ->": "as near to 0",
        "most_lost: -1 -> -2": "no difference is lower than -1",
    },
}
"""Reasons, by module and by how the description continues after it."""
