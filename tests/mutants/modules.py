"""All modules, the share of mutants that tests must catch, and the mutants that no test can."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.equivalent import policy, runs, serving, stats

__all__ = ["EQUIVALENT", "LEAST_CAUGHT", "MODULES", "ROOT", "wing_of"]

ROOT = Path(__file__).resolve().parent.parent.parent

MODULES: tuple[str, ...] = tuple(
    sorted(
        str(file.relative_to(ROOT / "stopadvisor").with_suffix(""))
        for file in (ROOT / "stopadvisor").rglob("*.py")
        if not file.stem.startswith("_")
    )
)
"""All modules of the package, as `wing/module`."""

_MOST_CRITICAL = ("stats", "policy", "runs", "serving")
LEAST_CAUGHT: dict[str, float] = {
    wing: 0.95 if wing in _MOST_CRITICAL else 0.85
    for wing in dict.fromkeys(module.partition("/")[0] for module in MODULES)
}
"""The share of each wing's mutants that its tests must catch."""


def wing_of(module: str) -> str:
    """The wing of a module; a module outside all wings is its own."""
    return module.partition("/")[0]


EQUIVALENT: dict[str, str] = {
    f"{module} {begins}": why
    for wing in (stats, policy, runs, serving)
    for module, found in wing.EQUIVALENT.items()
    for begins, why in found.items()
} | {
    "certification/calibration calibrate: delta == 0 -> delta == 1": "at 0 no test passes",
    "certification/calibration _refusal: need.labels_needed or 0 -> need.labels_needed or 1": (
        "a known number of labels is never 0"
    ),
    "certification/calibration _first_risk: max(float(losses), 0.0) -> max(float(losses), 0": (
        "a tenth of a question in a figure that sizes advice"
    ),
    "certification/verdicts verdict_on: _lower_limit(losses, n, delta) > alpha -> _lower": (
        "differs at equality, by rounding"
    ),
    "certification/calibration _pick: saving(pair) >= saving(best) - lead -> saving(pair) > ": (
        "differs where savings are a point apart to the last bit"
    ),
    "certification/certify _Plan: is_partial: bool = False ->": "its caller gives it",
    "certification/export _drawn: cap=1 ->": "sampling does not depend on it",
    "certification/export _drawn: max_think=1 ->": "sampling does not depend on it",
    "certification/export : _MOST_SERVED = 500 ->": "one question more is fine",
    "certification/export : _MOST_STORED = 2000 ->": "one question more is fine",
    "certification/labelling Labelling.state: np.random.default_rng(0) ->": (
        "other draws forecast as well"
    ),
    "certification/labelling Labelling.state: self, grades: Grades, *, n_draws: int=50 ->": (
        "one draw more forecasts as well"
    ),
    "assessment/rated Imitation._mean_costs: np.clip(most, 0, _FEW_LOSSES) ->": (
        "at 0 the other factor is 0"
    ),
    "assessment/rated Imitation._mean_costs: np.round(most + away) + 0.5 + 1e-06 ->": (
        "differs at equality, by rounding"
    ),
    "rules/scores _newton: max(abs(value), 1.0) -> max(abs(value), 1.1)": (
        "a tenth more tolerance is fine"
    ),
    "ground/printable : code < 65536 ->": "no character here has that code",
    "ground/printable _escape: code < 65536 ->": "no character here has that code",
    "rules/climb _support: -1 -> -2": "a missing answer is in no run, whatever came before",
    "certification/export : _MOST_BLOCKS = 1000 ->": "one block more is fine",
    "answers/grader_process : 4 << 30 ->": "with more memory it grades the same",
    "answers/grader_process : _MOST_SHOWN = 300 ->": "one character more is fine",
    "answers/grading : _MOST_WORKERS = 64 ->": "one process more is fine",
    "answers/grading : _START_SECONDS = 120.0 ->": "twelve seconds more are fine",
    "answers/grading : _WALL_PER_CPU_SECOND = 10.0 ->": "one second more is fine",
    "assessment/promises label_needs.mean: rng.random(n) < share ->": (
        "a draw equals a share with probability 0"
    ),
    "engines/chat : _CONTEXT = 8 ->": "one token more decodes the same",
    "engines/engine_settings : _AT_ONCE = 32 ->": "one question more is fine",
    "engines/engine_settings : _AT_ONCE_HERE = 256 ->": "one question more is fine",
    "engines/hf/branch : MOST_AT_ONCE = 32 ->": "one branch more decodes the same",
    "engines/hf/branch : 2 ** 26 ->": "larger pieces give the same figures",
    "engines/hf/branch Grid.compact: 4 * len(rows)": "when rows are dropped changes no answer",
    "engines/hf/branch Grid.compact: 3 * len(active)": "when rows are dropped changes no answer",
    "engines/hf/branch Grid.compact: 2 * active.sum()": "when slots are dropped changes no answer",
    "engines/hf/branch _statistics: max(1, _STATISTICS_ELEMENTS": (
        "larger pieces give the same figures"
    ),
    "engines/hf/cache : _GROWTH = 1.25 ->": "more room holds the same",
    "engines/hf/cache : _ALIGN = 64 ->": "more room holds the same",
    "engines/hf/cache : _CHUNK = 512 ->": "larger pieces give the same cache",
    "engines/hf/engine : _ASSUMED_PROMPT = 512 ->": "one token more is fine",
    "engines/hf/local_model LocalModel.pad_id: self.chat.tokenizer.pad_token_id or 0 ->": (
        "what pads is masked"
    ),
    "engines/hf/local_model : _SMALLEST_SPLIT = 8 ->": "one row more is fine",
    "engines/hf/local_model : {'cuda': 0.85": "a tenth more of the memory is fine",
    "engines/hf/sampler Sampler.draw: dim=-1 -> dim=+1": "the last of two axes is the second",
    "engines/http/client : RETRY_TIMEOUT = 300.0 ->": "half a minute more is fine",
    "engines/http/client : REQUEST_TIMEOUT = 600.0 ->": "one minute more is fine",
    "engines/http/client : _CONNECT_TIMEOUT = 10.0 ->": "one second more is fine",
    "engines/http/client : _KEEP_ALIVE = 4.0 ->": "uvicorn still closes them later",
    "engines/http/client : _SHOWN = 200 ->": "one character more is fine",
    "engines/http/client : 2 ** 14 ->": "more of an error's body is fine",
    "engines/http/completion : _PER_PROMPT_TOKEN = 16 ->": "one byte more is fine",
    "engines/http/completion : _PER_LOGPROB = 128 ->": "one byte more is fine",
    "engines/http/servers : OPENING_TIMEOUT = 5.0 ->": "half a second more is fine",
    "engines/http/servers : (0.5, 10.0) -> (0.5, 11": "one second more is fine",
    "engines/model_files : _PIECES = 32 ->": "one piece more is fine",
    "engines/openai/early_exit : _AT_ONCE = 64 ->": "one token more is fine",
    "engines/openai/endpoint : _MOST_TOP = 1024 ->": "no server allows that many",
    "engines/openai/endpoint : _REPEATED = 600 ->": "one token more is fine",
    "engines/openai/endpoint _endpoint_of: length // len(_ANY_IDS) + 1 -> length // len(_ANY_IDS) "
    "+ 2": "it is cut to its length",
    "engines/openai/endpoint _top_limit: USUAL_TOP + 1 -> USUAL_TOP - 1": (
        "the search finds the same number with more requests"
    ),
    "engines/openai/engine : _TRIED = 8 ->": "one token more is fine",
    "engines/openai/rung_servers : _PATIENCE = 5.0 ->": "half a second more is fine",
    "engines/openai/rung_servers : _REST = 30.0 ->": "three seconds more are fine",
    "engines/openai/rung_servers _read: mean > -1000000.0 -> mean >= ": "differs at one number",
    "probes/table : -2 -> -3": "any number that is no answer's will do",
    "probes/trigger : -1 -> -2": "any number that is no token's will do",
    "report/html/charts : (0, (": "other dashes tell lines apart as well",
    "report/html/charts : (6, 2": "other dashes tell lines apart as well",
    "report/html/charts : (2, 2) ->": "other dashes tell lines apart as well",
    "report/html/charts : (1, 1) ->": "other dashes tell lines apart as well",
    "report/html/charts : (10, 3) ->": "other dashes tell lines apart as well",
    "report/html/charts : _WIDTH = 5.0 ->": "a picture a tenth wider shows the same",
    "report/html/charts : _DPI = 72 ->": "a picture a little larger shows the same",
    "report/html/charts : _FONT = 11.0 ->": "one point more is fine",
    "report/html/charts style: ": "lines and letters that look a little different show the same",
    "rules/features : 1 << 16 ->": "larger pieces give the same features",
    "rules/scores : _NEWTON_STEPS = 50 ->": "it ends long before",
    "rules/scores : _NEWTON_TOLERANCE = 1e-14 ->": "found to 1e-11 it scores the same",
    "rules/scores : _SMALLEST_STEP = 1e-10 ->": "no step is as small",
    "workload/inspect_log _unpacked: :200 -> :201": "one character more is fine",
}
"""Why no test can detect these mutants, by how their description begins."""
