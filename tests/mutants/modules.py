"""Every module, how many mutants of each wing tests must catch, and which no test could."""

from __future__ import annotations

from pathlib import Path

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
"""By wing: the share of mutants of it that its tests must catch."""


def wing_of(module: str) -> str:
    """The wing of a module; a module outside of all wings is one of its own."""
    return module.partition("/")[0]


EQUIVALENT: dict[str, str] = {
    "stats/bounds : _MOST_LABELS = 1000000 ->": "a size more is as good",
    "stats/bounds labels_needed: 2 * high -> 3 * high": "ends alike",
    "stats/bounds labels_needed: high - low > 1 -> high - low > 2": "ends alike",
    "stats/intervals : MOST_BLOCKS = 2000 ->": "a block more is as good",
    "stats/intervals ratio_interval: np.abs(distance) <= 1e-09 * abs(ratio) ->": (
        "at the limit itself only where both are 0, as it is set to"
    ),
    "stats/intervals ratio_interval: errors <= 1e-06 * abs(ratio) ->": (
        "at the limit itself only where both are 0, as it is set to"
    ),
    "stats/intervals : 1 - 1e-12 -> 1 - 1e-09": "limits are found to 1e-9 of a share at best",
    "stats/intervals paired_difference.score: (estimate - difference) * math.sqrt(n / variance) if"
    " variance > 0 else 0.0 ->": (
        "without any disagreement: the search needs its sign alone, beside a quantile"
    ),
    "stats/intervals paired_difference: score(-_EDGE) > z ->": "differs at equality, by rounding",
    "stats/intervals paired_difference: score(_EDGE) < -z -> score(_EDGE) <=": (
        "differs at equality, by rounding"
    ),
    "stats/label_sample _chance: _REACH ** 2 / 2 -> _REACH ** 2 / 3": (
        "what lies beyond it is still less than is added for it"
    ),
    "stats/sequential requests_to_alarm: (301, math.inf) ->": "a stream more is as good",
    "stats/sequential requests_to_alarm: (300, 2400) ->": "a loss more is as good",
    "stats/trinomial drop_size: open_[0] -> open_[1]": (
        "the corner is never the highest chance (n to 75, ten alphas, four deltas)"
    ),
    "policy/claims CertificateTerms.risk: self.planned_labels or 1 -> self.planned_labels or 2": (
        "where differing replies are counted, labels are planned: the check refuses the others"
    ),
    "serving/audit_log : _LARGEST = 1000000000000.0 ->": "no clock is so wrong, nor so right",
    "serving/audit_log _fault: -_LARGEST < time < _LARGEST -> -_LARGEST < time <= ": (
        "differs at one number, which no record holds"
    ),
    "serving/audit_log _fault: -_LARGEST < time < _LARGEST -> -_LARGEST <= time": (
        "differs at one number, which no record holds"
    ),
    "serving/audit_log _fault: -_LARGEST < value < _LARGEST -> -_LARGEST < value <= ": (
        "differs at one number, which no record holds"
    ),
    "serving/audit_log _fault: -_LARGEST < value < _LARGEST -> -_LARGEST <= value": (
        "differs at one number, which no record holds"
    ),
    "serving/audit_log : check_circular=False ->": "no record holds itself",
    "serving/audit_log AuditLog.__init__: self, folder: Path": "a byte, or nine days, more are as good",
    "serving/audit_log AuditLog.__init__: (0, 0, 0.0) -> (0, 1, 0.0)": "`_open` sets it",
    "serving/audit_log AuditLog.__init__: (0, 0, 0.0) -> (0, 0, 0.1)": "long ago, too",
    "serving/audit_log AuditLog.__init__: os.pread(self._file.fileno(), 1, max(self._size - 1, 0))"
    " -> os.pread(self._file.fileno(), 2": "one byte follows",
    "serving/audit_log AuditLog.__init__: max(self._size - 1, 0) -> max(self._size - 1, 1)": (
        "a log that is opened again has a header"
    ),
    "serving/audit_log AuditLog.write: self._size >= self._max_bytes ->": "a byte more is as good",
    "serving/audit_log AuditLog.write: self._number += 1 ->": "numbers need only rise",
    "serving/audit_log AuditLog._look: self._number += 1 ->": "numbers need only rise",
    "serving/audit_log AuditLog.write: path.stat().st_mtime < oldest ->": "a moment later is as good",
    "serving/audit_log AuditLog._append: 0 <= record['t'] - self._looked < _LOOK_SECONDS ->": (
        "it looks once more, or at the next record"
    ),
    "serving/audit_log AuditLog._append: record['t'] - self._looked ->": "it looks once more",
    "serving/audit_log AuditLog._append: end > self._size + len(data) ->": "no byte is read then",
    "serving/audit_log AuditLog._append: self._size + len(data) ->": "no byte is read then",
    "serving/audit_log AuditLog._append: end - len(data) ->": "its own line is no reset",
    "serving/audit_log AuditLog._apply_resets: end - self._size ->": "its own line is no reset",
    "serving/audit_log AuditLog._apply_resets: max(end - self._size, 0) ->": "a byte is no reset",
    "serving/audit_log _merged.timed: latest = 0.0 ->": "records are younger",
    "serving/audit_log _merged: :2 -> :3": "no two servers have one number",
    "serving/audits Auditor._picks: int.from_bytes(digest[:8], 'big') < self.settings.share": (
        "differs for one id in 2^64"
    ),
    "serving/monitored _delays: counts['stopped'] / counts['requests'] if": (
        "without a request no audit was dropped, and stops play no part"
    ),
    "serving/monitoring PromiseMonitor.__init__: self._time = 0.0 ->": "records are younger",
    "serving/monitoring PromiseMonitor.apply: record.get('t', 0.0) ->": "every record has a time",
    "serving/monitoring PromiseMonitor.apply: time > self._time ->": "the same time",
    "serving/monitoring PromiseMonitor._watch_drift: test.update(value, tie) >= limit -> "
    "test.update(value, tie) > limit": "differs at equality, by rounding",
    "serving/monitoring PromiseMonitor.restore: default=0 ->": "there are counts",
    "serving/monitoring PromiseMonitor.join: alarm.time < monitor.alarms[kind].time ->": (
        "both alarms are as early"
    ),
    "serving/metrics : (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000) -> "
    "(0.001,": "another bound of a bucket is as good",
    "serving/audit_log : _LOOK_SECONDS = 1.0 ->": "a tenth of a second later is as good",
    "serving/answering : _GROUP_BATCHES = 4 ->": "a batch more is as good",
    "serving/answering : cap=1 ->": "a ladder's replies are not probed: nothing reads it",
    "serving/answering : max_think=1 ->": "a ladder's replies are not probed: nothing reads it",
    "serving/answering answer_workload: sort_keys=True ->": "keys come in one order here",
    "serving/answering _timed: timed and full_seconds ->": "questions that were timed took time",
    "serving/audits : _SHOWN_EVERY = 100 ->": "a request later is as good",
    "serving/gateway/app : _CHECK_SECONDS = 5.0 ->": "half a second more is as good",
    "serving/gateway/app : 64 * 2 ** 10 -> 65": "where a body is parsed changes no answer",
    "serving/gateway/app : 2 ** 10 -> 2 ** 11": "where a body is parsed changes no answer",
    "serving/gateway/app Gateway._find_policy: size > _SMALL -> size >=": "a byte less is as good",
    "serving/gateway/app Gateway._find_policy: size > _SMALL + self.policies.longest_prompt -> size"
    " >=": "a byte less is as good",
    "serving/gateway/app Gateway._under_policy: secrets.randbits(31) ->": "a bit more is as good",
    "serving/gateway/app Gateway._rendered: size > _SMALL ->": "a byte less is as good",
    "serving/gateway/app _offload: size <= _SMALL ->": "a byte less is as good",
    "serving/gateway/app _finish: shadow=False ->": "it follows no rule",
    "serving/gateway/forward : 4 * 2 ** 20 -> 5": "a list of another MiB is as short",
    "serving/gateway/forward Forwarder.__init__: keepalive_timeout=4.0 ->": "less than 5 s, too",
    "serving/gateway/forward Forwarder.get: self._timeouts.connect + 3 -> self._timeouts.connect + "
    "4": "a second more is as good",
    "serving/gateway/forward Forwarder.get: answer.status >= 300 ->": "no server answers with 300",
    "serving/gateway/forward Forwarder.get: len(body) > _MOST_BYTES ->": "a byte less is as good",
    "serving/gateway/forward Forwarder._at: loop.time() > renewed + limits.between / 10 ->": (
        "the same moment"
    ),
    "serving/gateway/forward Forwarder._at: renewed + limits.between / 10 ->": (
        "the limit is renewed more often"
    ),
    "serving/gateway/forward Forwarder._at: limits.between / 10 -> limits.between / 11": (
        "the limit is renewed more often"
    ),
    "serving/gateway/intake : 64 * 2 ** 20 -> 65": "another MiB is as good",
    "serving/gateway/intake : 4 * _MOST_BYTES -> 5": "room for another body is as good",
    "serving/gateway/intake : _RETRY_AFTER = 5 ->": "a second more is as good",
    "serving/gateway/intake : _DECODINGS = 4 ->": "a layer more is as good",
    "serving/gateway/intake Intake._fill: message.get('more_body', False) ->": (
        "the server always says"
    ),
    "serving/gateway/intake Intake._fill: self._held + len(piece) > _HELD_BYTES ->": (
        "a byte less is as good"
    ),
    "serving/gateway/policies : _TOKEN_BYTES = 16 ->": "a generous bound in any case",
    "serving/gateway/policies : 4 * 2 ** 20 -> 5": "another MiB is as good",
    "serving/gateway/policies PolicySet._open_ladder: patience=0.0 ->": (
        "a tenth of a second more is as good"
    ),
    "serving/gateway/policies PolicySet.longest_prompt: default=0 ->": (
        "a few bytes more than no prompt are no prompt"
    ),
    "serving/gateway/policies PolicySet._open: (limits.total, 0.0) ->": (
        "a tenth of a second more is as good"
    ),
    "serving/gateway/server : _KEEP_ALIVE = 75 ->": "a second more is as good",
    "serving/gateway/server : 64 * 2 ** 10 -> 65": "another KiB is as good",
    "serving/gateway/server run: ends = 0.0 ->": "long ago, too",
    "serving/gateway/server run: max(0.0, ends - time.monotonic()) ->": (
        "a tenth of a second more is as good"
    ),
    "serving/gateway/server serve: logging.getLogger('uvicorn').propagate = False ->": (
        "nothing listens further up"
    ),
    "serving/gateway/server GatewayServer.of: access_log=False ->": "nothing listens to it",
    "serving/gateway/server GatewayServer.of: max(1, round(settings.grace)) ->": (
        "a second more is as good"
    ),
    "serving/gateway/server GatewayServer.startup: sockets or () ->": "the queue is uvicorn's own",
    "serving/gateway/server listen: sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1) ->": (
        "on is on"
    ),
    "serving/gateway/server ConnectionLimit.wait: len(self.connections) > self._most ->": (
        "a connection less is as good"
    ),
    "serving/gateway/server ClientConnection.__init__: self._unread = 0 ->": (
        "a byte less is as good"
    ),
    "serving/gateway/server ClientConnection.data_received: self._unread > HEAD_BYTES ->": (
        "a byte less is as good"
    ),
    "serving/gateway/server ClientConnection.on_headers_complete: self._unread = 0 ->": (
        "a byte less is as good"
    ),
    "serving/gateway/server ClientConnection.on_body: self._unread = 0 ->": "a byte less is as good",
    "serving/gateway/server ClientConnection.on_message_complete: self._unread = 0 ->": (
        "a byte less is as good"
    ),
    "serving/gateway/server : _BACKLOG = 2048 ->": "a connection more is as good",
    "serving/gateway/server : _ACCEPTED_AT_ONCE = 64 ->": "a connection more is as good",
    "serving/gateway/server : HEAD_SECONDS = 10.0 ->": "a second more is as good",
    "serving/gateway/server : _OTHER_FILES = 128 ->": "a file more is as good",
    "serving/responder : KEEP_ALIVE_SECONDS = 15.0 ->": "a second more is as good",
    "serving/server_profile : _ROUNDS = 3 ->": "a round more measures as well",
    "serving/server_profile : (32, 1024) ->": "a prompt of a token more measures as well",
    "serving/server_profile : _TRIPS = 5 ->": "a request more measures as well",
    "serving/server_profile _Work.round_trip: _TRIPS + 1 -> _TRIPS + 2": (
        "a request more measures as well"
    ),
    "serving/vllm/engine_model : _LAST = 1000000 ->": "behind all others, too",
    "serving/vllm/engine_model : _SELDOM = 64 ->": "a token more is as good",
    "serving/vllm/engine_model : _ABANDON_SECONDS = 0.05 ->": "5 milliseconds more are as good",
    "serving/vllm/self_test : _SECONDS = 300.0 ->": "half a minute more is as good",
    "serving/vllm/self_test : _ENDS_WITHIN = 30.0 ->": "three seconds more are as good",
    "stats/exchangeability : _REMEMBERED = 8192 ->": "what is cached changes no number",
    "serving/audits Auditor: secrets.token_bytes(32) ->": "a byte more is as good",
    "policy/file _check_strings: wide = 0 -> wide = 1": "a byte less is as good",
    "certification/calibration calibrate: delta == 0 -> delta == 1": "at 0 no test passes",
    "certification/calibration _refusal: need.labels_needed or 0 -> need.labels_needed or 1": (
        "no number of labels that is known is 0"
    ),
    "certification/calibration _first_risk: max(float(losses), 0.0) -> max(float(losses), 0": (
        "a tenth of a question in what sizes advice"
    ),
    "certification/verdicts verdict_on: _lower_limit(losses, n, delta) > alpha -> _lower": (
        "differs at equality, by rounding"
    ),
    "policy/session Session.__init__: self._cut = False -> self._cut = True": (
        "`end` sets it before anybody reads it"
    ),
    "policy/claims _check_binomial: binomial_tail(losses, n, alpha * (1 + _SLACK)) > delta ->": (
        "differs at equality, by rounding"
    ),
    "stats/binomial binomial_tail: term < 1e-18 ->": (
        "what such a term would add is below the precision that is claimed, 1e-10"
    ),
    "policy/stepper _number: return 0.0 ->": "no rule reads it that was given none",
    "policy/stepper Stepper.observe: -math.inf < mean_logprob <= _SLACK -> -math.inf < "
    "mean_logprob < _SLACK": "`_number` looks again, and takes it",
    "policy/stepper Stepper.observe: -math.inf < mean_logprob <= _SLACK -> +math.inf": (
        "`_number` looks again, and takes it"
    ),
    "policy/stepper Stepper.observe: -_SLACK <= mean_entropy < math.inf -> -_SLACK < mean": (
        "`_number` looks again, and takes it"
    ),
    "policy/stepper Stepper.observe: -_SLACK <= mean_entropy < math.inf -> +_SLACK": (
        "`_number` looks again, and takes it"
    ),
    "policy/stepper Stepper.observe: 0.0 <= markers < math.inf -> 0.0 < markers": (
        "`_number` looks again, and takes it"
    ),
    "policy/stepper Stepper.observe: 0.0 <= markers < math.inf -> 0.1 <= markers": (
        "`_number` looks again, and takes it"
    ),
    "policy/stepper Stepper.__init__: self._run = 0 ->": "the first step sets it",
    "policy/stepper Stepper.__init__: self._began = 0 ->": "the first step sets it",
    "policy/stepper Stepper.__init__: self._confidence = 0.0 ->": "the first step sets it",
    "policy/stepper Stepper.observe: confidence = 0.0 ->": "the rule that reads it sets it",
    "policy/stepper Stepper.observe: 0 if positions is None else": (
        "no rule off a grid reads where on one a probe lies"
    ),
    "policy/stepper _position_values: position > 1 -> position >= 1": "the logarithm of 1 is 0",
    "policy/stepper Stepper.observe: rise > 0.0 -> rise >= 0.0": "a rise of 0 gives a score of 0",
    "policy/golden _edge: high - low < _DISTANCE ->": "so near the threshold is near enough",
    "policy/golden _ranges: trigger.stop_at - 1 -> trigger.stop_at - 2": (
        "an example at the threshold is searched for a token nearer"
    ),
    "policy/golden _ranges: steps[-2]['think_tokens'] if len(steps) > 1 else 0 ->": (
        "an example at the threshold is searched for a token later"
    ),
    "policy/golden _clear: abs(decisions[-1]['score'] - threshold) > 10 * _TOLERANCE"
    " -> abs(decisions[-1]['score'] - threshold) >=": "differs at equality, by rounding",
    "policy/golden _clear: 10 * _TOLERANCE -> 11": "a tolerance that is a tenth larger is as good",
    "policy/golden : -30.0 -> -33": "so far is searched for examples at the threshold",
    "policy/golden : (0.0, 20.0) -> (0.0, 22": "so far is searched for examples at the threshold",
    "policy/golden : (0.0, 64.0) -> (0.0, 70": "so far is searched for examples at the threshold",
    "certification/calibration _pick: saving(pair) >= saving(best) - lead -> saving(pair) > ": (
        "differs where savings are a point apart to the last bit"
    ),
    "assessment/rated Imitation._mean_costs: np.clip(most, 0, _FEW_LOSSES) ->": (
        "at 0 the other factor is 0"
    ),
    "assessment/rated Imitation._mean_costs: np.round(most + away) + 0.5 + 1e-06 ->": (
        "differs at equality, by rounding"
    ),
    "rules/scores _newton: max(abs(value), 1.0) -> max(abs(value), 1.1)": (
        "a tolerance that is a tenth larger is as good"
    ),
    "ground/printable : code < 65536 ->": "none of these is that one",
    "ground/printable _escape: code < 65536 ->": "none of these is that one",
    "rules/climb _support: -1 -> -2": "an answer that is none is in no run, whatever was before",
    "stats/intervals saving_band: ddof=1 -> ddof=2": (
        "deviations are taken in units of the error, and their reach is turned back by it"
    ),
    "stats/intervals saving_band: posinf=0.0 -> posinf=0.1": (
        "a tenth of an error is not among the largest deviations"
    ),
    "certification/export : _MOST_BLOCKS = 1000 ->": "a block more is as good",
    "answers/grader_process : 4 << 30 ->": "with more memory it grades the same",
    "answers/grader_process : _MOST_SAID = 300 ->": "a character more is as good",
    "answers/grading : _MOST_WORKERS = 64 ->": "a process more is as good",
    "answers/worker : _START_SECONDS = 120.0 ->": "twelve seconds more are as good",
    "answers/worker : WALL_PER_CPU_SECOND = 10.0 ->": "a second more is as good",
    "assessment/promises label_needs.mean: rng.random(n) < share ->": (
        "what is drawn equals a share with no probability"
    ),
    "engines/chat : _CONTEXT = 8 ->": "a token more decodes the same",
    "engines/engine_settings : _AT_ONCE = 32 ->": "a question more is as good",
    "engines/engine_settings : _AT_ONCE_HERE = 256 ->": "a question more is as good",
    "engines/hf/branch : MOST_AT_ONCE = 32 ->": "a branch more decodes the same",
    "engines/hf/branch : 2 ** 26 ->": "larger pieces give the same figures",
    "engines/hf/branch _Grid.compact: 4 * len(rows)": "when rows are dropped changes no answer",
    "engines/hf/branch _Grid.compact: 3 * len(active)": "when rows are dropped changes no answer",
    "engines/hf/branch _Grid.compact: 2 * active.sum()": "when slots are dropped changes no answer",
    "engines/hf/branch _statistics: max(1, _STATISTICS_ELEMENTS": (
        "larger pieces give the same figures"
    ),
    "engines/hf/cache : _GROWTH = 1.25 ->": "more room holds the same",
    "engines/hf/cache : _ALIGN = 64 ->": "more room holds the same",
    "engines/hf/cache : _CHUNK = 512 ->": "larger pieces give the same cache",
    "engines/hf/engine : _ASSUMED_PROMPT = 512 ->": "a token more is as good",
    "engines/hf/local_model : _SMALLEST_SPLIT = 8 ->": "a row more is as good",
    "engines/hf/local_model : {'cuda': 0.85": "a tenth more of the memory is as good",
    "engines/hf/sampler Sampler.draw: dim=-1 -> dim=+1": "the last of two axes is the second",
    "engines/http/client : RETRY_TIMEOUT = 300.0 ->": "half a minute more is as good",
    "engines/http/client : REQUEST_TIMEOUT = 600.0 ->": "a minute more is as good",
    "engines/http/client : _CONNECT_TIMEOUT = 10.0 ->": "a second more is as good",
    "engines/http/client : _KEEP_ALIVE = 4.0 ->": "uvicorn still closes them later",
    "engines/http/client : _SHOWN = 200 ->": "a character more is as good",
    "engines/http/client : 2 ** 14 ->": "more of an error's body is as good",
    "engines/http/completion : _PER_PROMPT_TOKEN = 16 ->": "a byte more is as good",
    "engines/http/completion : _PER_LOGPROB = 128 ->": "a byte more is as good",
    "engines/http/servers : OPENING_TIMEOUT = 5.0 ->": "half a second more is as good",
    "engines/http/servers : (0.5, 10.0) -> (0.5, 11": "a second more is as good",
    "engines/model_files : _PIECES = 32 ->": "a piece more is as good",
    "engines/openai/early_exit : _AT_ONCE = 64 ->": "a token more is as good",
    "engines/openai/endpoint : _MOST_TOP = 1024 ->": "no server allows as many",
    "engines/openai/endpoint : _REPEATED = 600 ->": "a token more is as good",
    "engines/openai/endpoint _endpoint_of: length // len(_ANY_IDS) + 1 -> length // len(_ANY_IDS) "
    "+ 2": "it is cut to its length",
    "engines/openai/endpoint _top_limit: USUAL_TOP + 1 -> USUAL_TOP - 1": (
        "the search finds the same number with more requests"
    ),
    "engines/openai/engine : _BATCH = 256 ->": "a question more is as good",
    "engines/openai/engine : _TRIED = 8 ->": "a token more is as good",
    "engines/openai/rung_servers : _PATIENCE = 5.0 ->": "half a second more is as good",
    "engines/openai/rung_servers : _REST = 30.0 ->": "three seconds more are as good",
    "engines/openai/rung_servers _read: mean > -1000000.0 -> mean >= ": "differs at one number",
    "probes/table : -2 -> -3": "any number that names no answer does",
    "probes/trigger : -1 -> -2": "any number that names no token does",
    "report/html/charts : (0, (": "other dashes tell lines apart as well",
    "report/html/charts : (6, 2": "other dashes tell lines apart as well",
    "report/html/charts : (2, 2) ->": "other dashes tell lines apart as well",
    "report/html/charts : (1, 1) ->": "other dashes tell lines apart as well",
    "report/html/charts : (10, 3) ->": "other dashes tell lines apart as well",
    "report/html/charts : _WIDTH = 5.0 ->": "a picture a tenth wider shows the same",
    "report/html/charts : _DPI = 72 ->": "a picture a little larger shows the same",
    "report/html/charts : _FONT = 11.0 ->": "a point more is as good",
    "report/html/charts style: ": "lines and letters that look a little different show the same",
    "rules/features : 1 << 16 ->": "larger pieces give the same features",
    "rules/scores : _NEWTON_STEPS = 50 ->": "it ends long before",
    "rules/scores : _NEWTON_TOLERANCE = 1e-14 ->": "found to 1e-11 it scores the same",
    "rules/scores : _SMALLEST_STEP = 1e-10 ->": "no step is as small",
    "workload/inspect_log _unpacked: :200 -> :201": "a character more is as good",
}
"""Mutants that nothing can tell from the original, by how their description begins, and why."""
