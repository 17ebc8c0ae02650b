"""Mistakes in policies that no test can detect."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, dict[str, str]] = {
    "policy/claims": {
        ": _MOST_LIMITS = 64 ->": "one limit more is fine",
        ": _MOST_LOOKS = 1024 ->": "one look more is fine",
        ": _ROUNDING = 1e-12 ->": "a billionth is rounding too",
        "CertificateTerms.risk: self.planned_labels or 1 -> self.planned_labels or 2": (
            "where differing replies are counted, labels are planned: the check refuses the others"
        ),
        "_check_binomial: binomial_tail(losses, n, alpha * (1 + _SLACK)) > delta ->": (
            "differs at equality, by rounding"
        ),
        "_check_binomial: binomial_tail(losses, n, high) <= delta <= binomial_tail(losses, n,"
        " low) -> binomial_tail(": "differs at equality, by rounding",
        "_check_looks: chain <= shared + _ROUNDING -> chain <": "differs at equality, by rounding",
        "check_certificate: limit.upper <= limit.alpha * (1 + _SLACK) -> limit.upper <": (
            "differs at equality, by rounding"
        ),
    },
    "policy/climber": {
        "Climber._score: log_odds(logprob) if 'answer_log_odds' in rule.features else": (
            "no term reads it"
        ),
        "Judged: gives_up: bool = False ->": "it is always given",
    },
    "policy/consistency": {
        ": _MAX_GOLDEN_STEPS = 4096 ->": "one step more is fine",
        "_check_golden: len(steps) <= _MAX_GOLDEN_STEPS -> len(steps) <": "one step less is fine",
        "_check_stop: abs_tol=1e-12 ->": "this close to 0 counts as 0",
        "check_trigger: -1 -> -2 (2)": "budgets rise, so the last one is the largest",
        "check_trigger: default=0 ->": "a position is always given",
    },
    "policy/evidence": {
        ": value <= 100 + 1e-06 -> value <": "differs at equality, by rounding",
        "_check_interval: max(abs(below), abs(above)) <= _TAIL * _SLACK_OF_TAILS ->": (
            "differs at equality, by rounding"
        ),
        "_check_shares: abs(share * n - round(share * n)) <= _SLACK ->": (
            "differs at equality, by rounding"
        ),
        "_check_shares: accuracy <= 1 - risk + _SLACK ->": "differs at equality, by rounding",
        "_check_shares: accuracy >= full - risk - _SLACK ->": "differs at equality, by rounding",
        "_check_shares: full >= risk - _SLACK ->": "differs at equality, by rounding",
        "check_expected: certificate.n * traces -> certificate.n / traces": (
            "with two traces both risks are counts of replies, as was checked more strictly"
        ),
        "check_split: certificate.labelled or 0 -> certificate.labelled or 1": (
            "`n` is 1 or more, and is checked first"
        ),
        "check_expected: ends[0] - _SLACK <= value <= ends[1] + _SLACK ->": (
            "differs at equality, by rounding"
        ),
    },
    "policy/file": {
        ": _LINE = 100 ->": "one column more is fine",
        "_check_strings: len(text) <= MAX_TEXT -> len(text) <": (
            "no text in it is longer than the whole"
        ),
        "_check_strings: text.find('\\\\', start, end) >= 0 ->": (
            "a policy does not begin with a text"
        ),
        "_check_strings: wide = 0 -> wide = 1": "one byte less is fine",
        "decode: start < 0 -> start <": "a digest does not begin the text",
        "_written: allow_nan=False ->": "numbers that are not finite fail before",
        "_written: indent + len(line) < _LINE -> indent + len(line) <=": "one column more is fine",
        "read_bytes: getattr(os, 'O_NONBLOCK', 0) ->": "Linux has it",
    },
    "policy/frozen": {"Policy: compare=False -> compare=True": "the rules follow from the terms"},
    "policy/golden": {
        ": _MOST_GAPS = 64 ->": "how far examples at the threshold are searched for",
        ": _MOST_REPLY = 65536 ->": "how far examples at the threshold are searched for",
        ": (0.0, 20.0) -> (0.0, 22": "how far examples at the threshold are searched for",
        ": (0.0, 64.0) -> (0.0, 70": "how far examples at the threshold are searched for",
        ": -30.0 -> -33": "how far examples at the threshold are searched for",
        "_clear: 10 * _TOLERANCE -> 11": "a tenth more tolerance is fine",
        "_clear: abs(entry.decisions[-1].score - threshold) > 10 * _TOLERANCE ->"
        " abs(entry.decisions[-1].score - threshold) >=": "differs at equality, by rounding",
        "_climbs.replies: draw() < _FINISHED -> draw() <=": "no draw of `Random(0)` equals it",
        "_edge: high - low < _DISTANCE ->": "close enough to the threshold",
        "_ranges: steps[-2].think_tokens if len(steps) > 1 else 0 ->": (
            "an example at the threshold is sought one token later"
        ),
        "_ranges: trigger.stop_at - 1 -> trigger.stop_at - 2": (
            "an example at the threshold is sought one token closer"
        ),
    },
    "policy/requests": {"_question: :12 -> :13": "the name of its question is not used"},
    "policy/run_policies": {
        "current_policy: len(files) > 1 -> len(files) >=": "a single file is returned anyway"
    },
    "policy/session": {
        "Session.__init__: self._cut = False -> self._cut = True": (
            "`end` sets it before anybody reads it"
        )
    },
    "policy/shown": {
        "counted: differing is None or planned is None -> differing is None and": (
            "the check refuses one without the other"
        ),
        "where_of: terms.kind != 'stop' or terms.decision_threshold is None -> terms.kind != 'stop'"
        " and": "the check gives a policy a threshold exactly if it stops",
        "server_words: top_k or 0 -> top_k or 1": "vLLM returns more than either by default",
    },
    "policy/signature": {"_read: _MAX_KEY + 1 -> _MAX_KEY + 2": "any byte more is too many"},
    "policy/stepper": {
        "Stepper.__init__: self._began = 0 ->": "the first step sets it",
        "Stepper.__init__: self._confidence = 0.0 ->": "the first step sets it",
        "Stepper.__init__: self._run = 0 ->": "the first step sets it",
        "Stepper.observe: -_SLACK <= mean_entropy < math.inf -> +_SLACK": (
            "`_number` checks again, and accepts it"
        ),
        "Stepper.observe: -_SLACK <= mean_entropy < math.inf -> -_SLACK < mean": (
            "`_number` checks again, and accepts it"
        ),
        "Stepper.observe: -math.inf < mean_logprob <= _SLACK -> +math.inf": (
            "`_number` checks again, and accepts it"
        ),
        "Stepper.observe: -math.inf < mean_logprob <= _SLACK -> -math.inf < mean_logprob <"
        " _SLACK": "`_number` checks again, and accepts it",
        "Stepper.observe: 0 if positions is None else": (
            "only rules on a grid read grid positions"
        ),
        "Stepper.observe: 0.0 <= markers < math.inf -> 0.0 < markers": (
            "`_number` checks again, and accepts it"
        ),
        "Stepper.observe: 0.0 <= markers < math.inf -> 0.1 <= markers": (
            "`_number` checks again, and accepts it"
        ),
        "Stepper.observe: confidence = 0.0 ->": "the rule that reads it sets it",
        "Stepper.observe: rise > 0.0 -> rise >= 0.0": "a rise of 0 gives a score of 0",
        "_number: return 0.0 ->": "no rule reads a value that it was not given",
        "_position_values: position > 1 -> position >= 1": "the logarithm of 1 is 0",
    },
    "policy/terms": {
        ": _MOST_GOLDEN = 32 ->": "one example more is fine",
        ": _MOST_STEPS = 1024 ->": "one step more is fine",
    },
}
"""Reasons, by module and by how the description continues after it."""
