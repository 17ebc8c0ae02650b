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
    "stats/bounds labels_needed: high > 0 -> high >= 0": "nobody loses less than nothing",
    "stats/bounds labels_needed: needed <= _MOST_LABELS ->": "a size less is as good",
    "stats/bounds _last_size: losses + 1 -> losses - 1": "ends alike",
    "stats/bounds _last_size: 2 * (losses + 1) -> 3": "ends alike",
    "stats/bounds _last_size: losses + 1 -> losses + 2 (2)": "ends alike",
    "stats/bounds _last_size: max(2 * (losses + 1), 1) -> max(2 * (losses + 1), 2)": "ends alike",
    "stats/bounds _last_size: 2 * high -> 3 * high": "ends alike",
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
    "serving/server_profile measure_server: base_url: str": "a minute more is as good",
    "serving/server_profile measure_server.measure: retry_timeout=0.0 ->": (
        "a tenth of a second more is as good"
    ),
    "serving/server_profile profile_server: 4 * _LONGEST -> 5": "half of it is enough in any case",
    "serving/server_profile profile_server: context // 2 -> context // 3": (
        "shorter prompts measure as well"
    ),
    "serving/server_profile _Work: _tokens_per_word: float = 1.0 ->": "it is measured first",
    "serving/server_profile _Work.measure: 2 * _SHORT -> 3": "a longer first prompt is as good",
    "serving/server_profile _Work.measure: self._ask(self._text(words), 1) ->": (
        "another token of the first answer is as good"
    ),
    "serving/server_profile _Work.measure: max(first.uncached + first.cached, 1) -> max(first"
    ".uncached + first.cached, 2)": "no prompt has but one token",
    "serving/server_profile _Work.measure: 2 * batch -> 3": "more requests measure as well",
    "serving/server_profile _Work.measure: 4 * batch -> 5": "more requests measure as well",
    "serving/server_profile _Work.round_trip: _TRIPS + 1 -> _TRIPS - 1": (
        "fewer requests measure as well"
    ),
    "serving/server_profile _Work.round_trip: 1: -> 2:": "fewer requests measure as well",
    "serving/server_profile _Work._prompt: max(1, int(tokens / self._tokens_per_word)) ->": (
        "a word more is as good"
    ),
    "serving/server_profile _Work._ask: Measurement(1, 1, prompt - cached, cached, decoded, seconds)"
    " -> Measurement(2": "nothing reads how many were asked at once",
    "serving/server_profile : (32, 1024) ->": "a prompt of a token more measures as well",
    "serving/server_profile : _TRIPS = 5 ->": "a request more measures as well",
    "serving/server_profile _Work.round_trip: _TRIPS + 1 -> _TRIPS + 2": (
        "a request more measures as well"
    ),
    "serving/vllm/engine_model : _LAST = 1000000 ->": "behind all others, too",
    "serving/vllm/engine_model : _SELDOM = 64 ->": "a token more is as good",
    "serving/vllm/engine_model : _ABANDON_SECONDS = 0.05 ->": "5 milliseconds more are as good",
    "serving/vllm/engine_model : -1 -> -2": "even before all others",
    "serving/vllm/engine_model Likeliest: count: int = 64 ->": "one more bounds as well",
    "serving/vllm/engine_model Likeliest.rest: min(-row.likeliest[-1], 10000.0) ->": (
        "nothing is so unlikely"
    ),
    "serving/vllm/binding _bind: 2 * likeliest.count < facts.vocabulary -> 2 * likeliest.count <=": (
        "it helps hardly then"
    ),
    "serving/vllm/binding _bind: 2 * likeliest.count -> 3": "it helps hardly then",
    "serving/vllm/adapter VllmEngine.__init__: detokenize=False ->": "costs time alone",
    "serving/vllm/adapter VllmEngine.__init__: skip_clone=True ->": "costs time alone",
    "serving/vllm/adapter VllmEngine.wait: max(2, tokens": "a token later is as good",
    "serving/vllm/self_test : _TOKENS = 48 ->": "a token more tries as well",
    "serving/vllm/self_test : _NEAR = 0.25 ->": "about as near",
    "serving/vllm/self_test _SelfTest.__init__: 2 if max_logprobs < 0 else": (
        "a token more tries as well"
    ),
    "serving/vllm/self_test _SelfTest.__init__: min(2, max_logprobs) -> min(3": (
        "a token more tries as well"
    ),
    "serving/vllm/self_test _SelfTest.run: self.most // 2 -> self.most // 3": (
        "another place tries as well"
    ),
    "serving/vllm/self_test _SelfTest.run: {'max_tokens': 2} ->": "a token more tries as well",
    "serving/vllm/self_test _SelfTest._thought: self.most // 3 -> self.most // 4": (
        "another place tries as well"
    ),
    "serving/vllm/self_test _SelfTest._thought: 2 * self.most // 3 -> 2 * self.most // 4": (
        "another place tries as well"
    ),
    "serving/vllm/self_test _SelfTest._merged: 0.0 if output.finished else 0.05 ->": (
        "outputs are merged as well"
    ),
    "serving/vllm/self_test _SelfTest._aborted: thinking.reach(1) ->": "a token later is as good",
    "serving/vllm/self_test _SelfTest._hold: row.likeliest[0] - row.likeliest[1] > _NEAR ->": (
        "differs at equality, by rounding"
    ),
    "serving/vllm/self_test _SelfTest._hold: abs(mine - theirs) > _NEAR ->": (
        "differs at equality, by rounding"
    ),
    "serving/vllm/self_test : _SECONDS = 300.0 ->": "half a minute more is as good",
    "serving/vllm/self_test : _ENDS_WITHIN = 30.0 ->": "three seconds more are as good",
    "serving/answer_file AnswerRecord.to_json: ensure_ascii=False ->": "read back alike",
    "serving/answer_file AnswerRecord.to_json: allow_nan=False ->": "no figure is NaN",
    "stats/adaptive_labels : (0.6, 1.0) ->": "a share that is about as good",
    "stats/adaptive_labels : 1 / 8 ->": "another assumption of what nobody knows",
    "stats/adaptive_labels : 1 / 4 ->": "another assumption of what nobody knows",
    "stats/adaptive_labels : 1 / 2 ->": "another assumption of what nobody knows",
    "stats/adaptive_labels : 3 / 4 ->": "another assumption of what nobody knows",
    "stats/adaptive_labels : _DRAWS = 8 ->": "a draw more is as good",
    "stats/adaptive_labels : _AHEAD = 0.5 ->": "a twentieth of a point more is as good",
    "stats/adaptive_labels forecast: tests: Sequence[LabelTest]": "a draw more is as good",
    "stats/adaptive_labels forecast: often[end.asked] += 1 ->": "only their order counts",
    "stats/adaptive_labels forecast: often > 0 -> often >= 0": (
        "no draw asks for more than all draws together"
    ),
    "stats/adaptive_labels preferred_sample: size < n -> size <= n": "a sample of all is none",
    "stats/adaptive_labels forecast: rng.random(known.size) < share ->": "differs with chance 0",
    "stats/adaptive_labels preferred_sample: rng.random(n) < share ->": "differs with chance 0",
    "stats/adaptive_labels preferred_sample: saved[best] - saved[0] > ": (
        "differs at equality, by rounding"
    ),
    "stats/exchangeability : _MOST = 1000000000000.0 ->": "a cap that is as good",
    "stats/exchangeability ExchangeabilityTest.update: capital > _MOST ->": "scaled by 1 then",
    "stats/exchangeability ExchangeabilityTest._place: len(self._places) >= _REMEMBERED ->": (
        "what is cached changes no number"
    ),
    "stats/label_sample : _FIRST = 32 ->": "another grid bounds as well",
    "stats/label_sample : _REACH = 9.0 ->": "what lies there is below what is added for it",
    "stats/label_sample : _BEYOND = 1e-12 ->": "less than the precision of a bound",
    "stats/label_sample : _WIDEST = 16.0 ->": "the search ends alike",
    "stats/label_sample : _STEPS = 14 ->": "a step more is as good",
    "stats/label_sample _chance: _REACH ** 2 / 2 -> _REACH ** 2 * 2": "a wider range",
    "stats/label_sample _chance: _REACH ** 2 -> _REACH ** 3": "a wider range",
    "stats/label_sample _chance: 1 - q -> 1 + q": "a wider range",
    "stats/label_sample _chance: 1 - q -> 2 - q": "a wider range",
    "stats/label_sample _chance: labels + 1 -> labels + 2": "the last column is not read",
    "stats/label_sample _chance: differing > labels -> differing >= labels": (
        "both formulas give the same there"
    ),
    "stats/label_sample _chance: chance + _BEYOND ->": "less than the precision of a bound",
    "stats/label_sample _is_at_most: high > delta ->": "differs at equality, by rounding",
    "stats/label_sample _is_at_most: _chances(most, labels, left, alpha / left) > delta ->": (
        "differs at equality, by rounding"
    ),
    "stats/label_sample _is_at_most: (right / left).min() < 1 + _NARROWEST ->": (
        "differs at equality, by rounding"
    ),
    "stats/label_sample _most_of_all: -1 -> -2": "ends alike",
    "stats/label_sample _most_of_all: binomial_tail(middle, n, alpha) <= delta ->": (
        "differs at equality, by rounding"
    ),
    "stats/label_sample most_lost_labelled: labels < n -> labels <= n": (
        "then no reply lies beyond the labels"
    ),
    "stats/label_sample most_lost_labelled: (math.inf, 0.0, _WIDEST) ->": "the search ends alike",
    "stats/sequential AuditTest: delta: float = 0.05 ->": "whoever watches a promise gives it",
    "stats/sequential AuditTest: least_share: float = 0.02 ->": "whoever watches a promise gives it",
    "stats/sequential AuditTest: change: float = 100000.0 ->": "whoever watches a promise gives it",
    "stats/sequential : _MOST_SUM = 1e+300 ->": "as far from any limit",
    "stats/sequential AuditProcess.is_broken: max(self.logs) >= self._limit ->": (
        "differs at equality, by rounding"
    ),
    "stats/sequential AuditProcess.is_broken: self.e_value >= 1 / self.test.delta ->": (
        "differs at equality, by rounding"
    ),
    "stats/sequential AuditProcess.has_changed: sum(self.sums) / len(self.sums) >= self.test.change"
    " ->": "differs at equality, by rounding",
    "stats/sequential _root: (1e-12, math.nextafter(1, 0)) ->": "no root lies so low",
    "stats/sequential _root: excess(high) <= 0 -> excess(high) <": "differs at equality, by rounding",
    "stats/sequential _root: high - low > 1e-12 + 1e-10 * low ->": "differs at equality, by rounding",
    "stats/sequential _root: 1e-12 + 1e-10 * low -> 1e-09": "precise enough for a share",
    "stats/sequential _root: 1e-10 * low -> 1.0000000000000001e-07": "precise enough for a share",
    "stats/sequential _root: excess(middle) < 0 -> excess(middle) <=": (
        "differs at equality, by rounding"
    ),
    "stats/sequential requests_to_alarm: evidence >= ": "differs at equality, by rounding",
    "stats/trinomial : _SPACING = 0.037 ->": "a grid that is about as fine",
    "stats/trinomial : _REACH = 9.0 ->": "what lies there is below any precision",
    "stats/trinomial : _ROUNDING = 1e-09 ->": "less than the precision of a bound",
    "stats/trinomial : _STEPS = 13 ->": "a step more is as good",
    "stats/trinomial _test: (-8.0, 0.0) ->": "the search ends alike",
    "stats/trinomial _test: -8.0 ->": "the search ends alike",
    "stats/trinomial _test: 16 + math.ceil(4 * math.sqrt(n)) -> 17": "a share more is tried",
    "stats/trinomial _test: 4 * math.sqrt(n) -> 5": "more shares are tried",
    "stats/trinomial _test: _tried(_region(n, alpha, middle), alpha, few) <= delta ->": (
        "differs at equality, by rounding"
    ),
    "stats/trinomial _test: drop_size((found := _region(n, alpha, low)), alpha) > delta ->": (
        "differs at equality, by rounding"
    ),
    "stats/trinomial _test: low < -40 -> low <=": "differs at equality, by rounding",
    "stats/trinomial _test: -40 -> -41": "as far from any rejection",
    "stats/trinomial _tried: n_points + 2 -> n_points + 3": "a share more is tried",
    "stats/trinomial _tried: 1:-1 -> 2:-1": "a share less is tried",
    "stats/trinomial _tried: -1 -> -2": "a share less is tried",
    "stats/trinomial drop_passes: _tried(most, alpha, 96) ->": "a share more is tried",
    "stats/trinomial drop_size: max(16, math.ceil(math.pi / 2 * math.sqrt(n) / _SPACING)) ->": (
        "even one question has more points"
    ),
    "stats/trinomial drop_limit: -0.999 ->": "the limit lies above",
    "stats/trinomial drop_limit: high - low > 0.0001 -> high - low >=": (
        "differs at equality, by rounding"
    ),
    "stats/trinomial drop_limit: quick=True ->": "slower, and as good",
    "stats/trinomial limit_of_pairs: -1e-12 ->": "as near to 0",
    "stats/trinomial _chance: rows = 24 ->": "another number of neighbours is as good",
    "stats/trinomial _likely: 1 - high -> 1 + high": "a wider range",
    "stats/trinomial _likely: 1 - high -> 2 - high": "a wider range",
    "stats/trinomial _likely: 1 - low -> 1 + low": "a wider range",
    "stats/trinomial _likely: 1 - low -> 2 - low": "a wider range",
    "stats/trinomial _likely: max(high * (1 - high), low * (1 - low), 0.0) ->": "a wider range",
    "stats/trinomial _likely: math.sqrt(n * max(high * (1 - high), low * (1 - low), 0.0)) + 1 -> "
    "math.sqrt(n * max(high * (1 - high), low * (1 - low), 0.0)) + 2": "a wider range",
    "stats/trinomial _likely: math.sqrt(n) / 2 -> math.sqrt(n) * 2": "a wider range",
    "stats/trinomial _likely: math.sqrt(n) / 2 + 2 -> math.sqrt(n) / 2 + 3": "a wider range",
    "stats/trinomial _likely: low < 0.5 < high -> low <= 0.5": "both ranges are wide enough there",
    "stats/trinomial _likely: low < 0.5 < high -> low < 0.5 <=": (
        "both ranges are wide enough there"
    ),
    "stats/trinomial _region: _score(middle, changed - middle, n, alpha) <= critical ->": (
        "differs at equality, by rounding"
    ),
    "stats/trinomial _score: np.maximum(variance, 1e-300) ->": "a variance of 0 in any case",
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
    "policy/consistency : _MAX_GOLDEN_STEPS = 4096 ->": "a step more is as good",
    "policy/consistency _check_golden: len(steps) <= _MAX_GOLDEN_STEPS -> len(steps) <": (
        "a step less is as good"
    ),
    "policy/consistency _check_stop: abs_tol=1e-12 ->": "so near 0 is 0",
    "policy/consistency check_trigger: default=0 ->": "a position is always given",
    "policy/terms : _MOST_GOLDEN = 32 ->": "an example more is as good",
    "policy/terms : _MOST_STEPS = 1024 ->": "a step more is as good",
    "policy/evidence : value <= 100 + 1e-06 -> value <": "differs at equality, by rounding",
    "policy/evidence check_expected: ends[0] - _SLACK <= value <= ends[1] + _SLACK ->": (
        "differs at equality, by rounding"
    ),
    "policy/evidence _check_shares: abs(share * n - round(share * n)) <= _SLACK ->": (
        "differs at equality, by rounding"
    ),
    "policy/evidence _check_shares: accuracy <= 1 - risk + _SLACK ->": (
        "differs at equality, by rounding"
    ),
    "policy/evidence _check_shares: full >= risk - _SLACK ->": "differs at equality, by rounding",
    "policy/evidence _check_shares: accuracy >= full - risk - _SLACK ->": (
        "differs at equality, by rounding"
    ),
    "policy/evidence _check_interval: max(abs(below), abs(above)) <= _TAIL * _SLACK_OF_TAILS ->": (
        "differs at equality, by rounding"
    ),
    "policy/file read_bytes: getattr(os, 'O_NONBLOCK', 0) ->": "Linux has it",
    "policy/file : _LINE = 100 ->": "a column more is as good",
    "policy/file _written: indent + len(line) < _LINE -> indent + len(line) <=": (
        "a column more is as good"
    ),
    "policy/file _written: allow_nan=False ->": "what is no number gets no digest before",
    "policy/file _check_strings: len(text) <= MAX_TEXT -> len(text) <": (
        "no text in it is longer than the whole"
    ),
    "policy/file _check_strings: text.find('\\\\', start, end) >= 0 ->": (
        "a policy does not begin with a text"
    ),
    "policy/climber Judged: gives_up: bool = False ->": "it is always given",
    "policy/climber Climber.certain: len(self._columns) - 1 -> len(self._columns) + 1": (
        "no more replies are named than there are"
    ),
    "policy/climber Climber._score: log_odds(logprob) if 'answer_log_odds' in rule.features else": (
        "no term reads it"
    ),
    "policy/claims : _MOST_LIMITS = 64 ->": "a limit more is as good",
    "policy/claims : _MOST_LOOKS = 1024 ->": "a look more is as good",
    "policy/claims : _ROUNDING = 1e-12 ->": "a billionth is rounding too",
    "policy/claims check_certificate: limit.upper <= limit.alpha * (1 + _SLACK) -> limit.upper <": (
        "differs at equality, by rounding"
    ),
    "policy/claims _check_looks: chain <= shared + _ROUNDING -> chain <": (
        "differs at equality, by rounding"
    ),
    "policy/claims _check_binomial: binomial_tail(losses, n, high) <= delta <= "
    "binomial_tail(losses, n, low) -> binomial_tail(": "differs at equality, by rounding",
    "serving/vllm/engine_model EngineModel.live: self, trace": "it is always given",
    "serving/vllm/engine_model EngineModel.force: (0.0, 0.0, 0.0) -> (0.0, ": (
        "no rule reads them that asks for no figures"
    ),
    "serving/vllm/self_test _SelfTest._thought: 2 * self.most -> 3 * self.most": (
        "another place to wait at"
    ),
    "serving/vllm/self_test _SelfTest._aborted: seldom=False ->": "either way it has to end",
    "serving/vllm/route _PolicyResponse: status_code: int = 200 ->": "replies bring their own",
    "policy/requests _question: :12 -> :13": "the name of its question is not used",
    "policy/shown server_words: top_k or 0 -> top_k or 1": "vLLM gives more than either by itself",
    "runs/replies : 2 ** 40 ->": "longer than any trace is as good",
    "runs/replies ReplyRecord.answered: len(samples) > 1 -> len(samples) >= 1": (
        "a single sample is its own plurality"
    ),
    "runs/replies ReplyRecord.answered: made if len(samples) > 1 else 0 ->": (
        "a single sample is its own plurality"
    ),
    "runs/replies reply_table: -1 -> -2": "no answer is any negative number",
    "runs/storage write_json_atomically: indent=1 ->": "a wider indent reads alike",
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
