"""Mistakes in serving that no test can detect."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, dict[str, str]] = {
    "serving/answer_file": {
        "AnswerRecord.to_json: allow_nan=False ->": "no figure is NaN",
        "AnswerRecord.to_json: ensure_ascii=False ->": "read back the same",
        "AnswerRecord.to_json: sparse=False ->": "the only default is None",
    },
    "serving/answering": {
        ": _GROUP_BATCHES = 4 ->": "one batch more is fine",
        ": cap=1 ->": "a ladder's replies are not probed: nothing reads it",
        ": max_think=1 ->": "a ladder's replies are not probed: nothing reads it",
        "_AnswerPass: _size: int = 1 ->": "it is set before it is read",
        "_timed_comparison: timed and full_seconds ->": "questions that were timed took time",
        "answer_workload: sort_keys=True ->": "keys are always in the same order here",
    },
    "serving/audit_log": {
        ": _LARGEST = 1000000000000.0 ->": "no clock is that far off",
        ": _CHECK_SECONDS = 1.0 ->": "a tenth of a second later is fine",
        ": check_circular=False ->": "no record contains itself",
        "AuditLog.__init__: (0, 0, 0.0) -> (0, 0, 0.1)": "also long ago",
        "AuditLog.__init__: (0, 0, 0.0) -> (0, 1, 0.0)": "`_open` sets it",
        "AuditLog.__init__: max(self._size - 1, 0) -> max(self._size - 1, 1)": (
            "a reopened log has a header"
        ),
        "AuditLog.__init__: os.pread(self._file.fileno(), 1, max(self._size - 1, 0)) ->"
        " os.pread(self._file.fileno(), 2": "one byte follows",
        "AuditLog.__init__: self, folder: Path": "a byte, or nine days, more are fine",
        "AuditLog._append: 0 <= record['t'] - self._checked < _CHECK_SECONDS ->": (
            "it checks once more, or with the next record"
        ),
        "AuditLog._append: end - len(data) ->": "its own line is no reset",
        "AuditLog._append: end > self._size + len(data) ->": "no byte is read then",
        "AuditLog._append: record['t'] - self._checked ->": "it checks once more",
        "AuditLog._append: self._size + len(data) ->": "no byte is read then",
        "AuditLog._apply_resets: end - self._size ->": "its own line is no reset",
        "AuditLog._apply_resets: max(end - self._size, 0) ->": "a byte is no reset",
        "AuditLog._check_in_place: self._number += 1 ->": "numbers need only rise",
        "AuditLog.write: path.stat().st_mtime < oldest ->": "a moment later is fine",
        "AuditLog.write: self._number += 1 ->": "numbers need only rise",
        "AuditLog.write: self._size >= self._max_bytes ->": "one byte more is fine",
        "_fault: -_LARGEST < time < _LARGEST -> -_LARGEST < time <= ": (
            "differs at one number, which no record contains"
        ),
        "_fault: -_LARGEST < time < _LARGEST -> -_LARGEST <= time": (
            "differs at one number, which no record contains"
        ),
        "_fault: -_LARGEST < value < _LARGEST -> -_LARGEST < value <= ": (
            "differs at one number, which no record contains"
        ),
        "_fault: -_LARGEST < value < _LARGEST -> -_LARGEST <= value": (
            "differs at one number, which no record contains"
        ),
        "_merged.timed: latest = 0.0 ->": "records are younger",
        "_merged: :2 -> :3": "no two servers share a number",
    },
    "serving/audits": {
        ": _SHOWN_EVERY = 100 ->": "a request later is fine",
        "Auditor._picks: int.from_bytes(digest[:8], 'big') < self.settings.share": (
            "differs for one id in 2^64"
        ),
        "Auditor: secrets.token_bytes(32) ->": "one byte more is fine",
    },
    "serving/gateway/app": {
        ": 2 ** 10 -> 2 ** 11": "where a body is parsed changes no answer",
        ": 64 * 2 ** 10 -> 65": "where a body is parsed changes no answer",
        ": _CHECK_SECONDS = 5.0 ->": "half a second more is fine",
        "Gateway._find_policy: size > _SMALL + self.policies.longest_prompt -> size >=": (
            "one byte less is fine"
        ),
        "Gateway._find_policy: size > _SMALL -> size >=": "one byte less is fine",
        "Gateway._rendered: size > _SMALL ->": "one byte less is fine",
        "Gateway._under_policy: secrets.randbits(31) ->": "one bit more is fine",
        "_offload: size <= _SMALL ->": "one byte less is fine",
    },
    "serving/gateway/forward": {
        ": 4 * 2 ** 20 -> 5": "a list of another MiB is as short",
        "Forwarder.__init__: keepalive_timeout=4.0 ->": "less than 5 s, too",
        "Forwarder._at: -32 -> -33": "it keeps one byte more of the end",
        "Forwarder._at: limits.between / 10 -> limits.between / 11": (
            "the limit is renewed more often"
        ),
        "Forwarder._at: loop.time() > renewed + limits.between / 10 ->": "the same moment",
        "Forwarder._at: renewed + limits.between / 10 ->": "the limit is renewed more often",
        "Forwarder.get: answer.status >= 300 ->": "no server answers with 300",
        "Forwarder.get: len(body) > _MOST_BYTES ->": "one byte less is fine",
        "Forwarder.get: self._timeouts.connect + 3 -> self._timeouts.connect + 4": (
            "one second more is fine"
        ),
    },
    "serving/gateway/intake": {
        ": 4 * _MOST_BYTES -> 5": "room for another body is fine",
        ": 64 * 2 ** 20 -> 65": "another MiB is fine",
        ": _DECODINGS = 4 ->": "one layer more is fine",
        ": _RETRY_AFTER = 5 ->": "one second more is fine",
        "Intake._fill: message.get('more_body', False) ->": "the server always says",
        "Intake._fill: self._held + len(piece) > _HELD_BYTES ->": "one byte less is fine",
    },
    "serving/gateway/policies": {
        ": 4 * 2 ** 20 -> 5": "another MiB is fine",
        ": _TOKEN_BYTES = 16 ->": "a generous bound in any case",
        "PolicySet._open: (limits.total, 0.0) ->": "a tenth of a second more is fine",
        "PolicySet._open_models: opening=True ->": (
            "with one server it is about retries, and no check is retried for longer"
        ),
        "PolicySet._open_rungs: patience=0.0 ->": "a tenth of a second more is fine",
        "PolicySet.load: at_server=True ->": "only the refusals of the plan are used",
        "PolicySet.longest_prompt: default=0 ->": "a few bytes more than no prompt are no prompt",
    },
    "serving/gateway/server": {
        ": 64 * 2 ** 10 -> 65": "another KiB is fine",
        ": HEAD_SECONDS = 10.0 ->": "one second more is fine",
        ": _ACCEPTED_AT_ONCE = 64 ->": "one connection more is fine",
        ": _BACKLOG = 2048 ->": "one connection more is fine",
        ": _KEEP_ALIVE = 75 ->": "one second more is fine",
        ": _OTHER_FILES = 128 ->": "one file more is fine",
        "ClientConnection.__init__: self._unread = 0 ->": "one byte less is fine",
        "ClientConnection.data_received: self._unread > HEAD_BYTES ->": "one byte less is fine",
        "ClientConnection.on_body: self._unread = 0 ->": "one byte less is fine",
        "ClientConnection.on_headers_complete: self._unread = 0 ->": "one byte less is fine",
        "ClientConnection.on_message_complete: self._unread = 0 ->": "one byte less is fine",
        "ConnectionLimit.wait: len(self.connections) > self._most ->": (
            "one connection less is fine"
        ),
        "GatewayServer.of: access_log=False ->": "nothing listens to it",
        "GatewayServer.of: max(1, round(settings.grace)) ->": "one second more is fine",
        "GatewayServer.startup: sockets or () ->": "the queue is uvicorn's own",
        "listen: sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1) ->": "on is on",
        "run: ends = 0.0 ->": "also long ago",
        "run: max(0.0, ends - time.monotonic()) ->": "a tenth of a second more is fine",
        "serve: logging.getLogger('uvicorn').propagate = False ->": "nothing listens further up",
    },
    "serving/metrics": {
        ": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000) -> (0.001,": (
            "another bound of a bucket is fine"
        )
    },
    "serving/monitored": {
        "_delays: counts['stopped'] / counts['requests'] if": (
            "without a request no audit was dropped, and stops play no part"
        )
    },
    "serving/monitoring": {
        "PromiseMonitor.__init__: self._time = 0.0 ->": "records are younger",
        "PromiseMonitor._watch_drift: test.update(value, tie) >= limit -> test.update(value,"
        " tie) > limit": "differs at equality, by rounding",
        "PromiseMonitor.apply: record.get('t', 0.0) ->": "every record has a time",
        "PromiseMonitor.apply: time > self._time ->": "the same time",
        "PromiseMonitor.join: alarm.time < monitor.alarms[kind].time ->": (
            "both alarms are as early"
        ),
        "PromiseMonitor.restore: default=0 ->": "there are counts",
    },
    "serving/responder": {": KEEP_ALIVE_SECONDS = 15.0 ->": "one second more is fine"},
    "serving/serve_settings": {
        "AuditSettings: at_once: int = 2 ->": "one audit more is fine",
        "GatewaySettings: check_every: float = 10.0 ->": "one second more is fine",
        "GatewaySettings: concurrency: int = 512 ->": "one request more is fine",
        "GatewaySettings: grace: float = 30.0 ->": "three seconds more are fine",
        "GatewaySettings: retry_timeout: float = 300.0 ->": "half a minute more is fine",
        "Timeouts: between: float = 60.0 ->": "six seconds more are fine",
        "Timeouts: connect: float = 2.0 ->": "a fifth of a second more is fine",
        "Timeouts: first: float = 120.0 ->": "twelve seconds more are fine",
        "Timeouts: probe: float = 10.0 ->": "one second more is fine",
        "Timeouts: total: float = 600.0 ->": "one minute more is fine",
    },
    "serving/server_profile": {
        ": (32, 1024) ->": "one more prompt token measures just as well",
        ": _ROUNDS = 3 ->": "one round more measures just as well",
        ": _TRIPS = 5 ->": "one request more measures just as well",
        "_Work._ask: Measurement(1, 1, prompt - cached, cached, decoded, seconds) ->"
        " Measurement(2": "nothing reads the number of requests at once",
        "_Work._prompt: max(1, int(tokens / self._tokens_per_word)) ->": "one word more is fine",
        "_Work.measure: 2 * _SHORT -> 3": "a longer first prompt is fine",
        "_Work.measure: 2 * batch -> 3": "more requests measure just as well",
        "_Work.measure: 4 * batch -> 5": "more requests measure just as well",
        "_Work.measure: max(first.uncached + first.cached, 1) -> max(first.uncached +"
        " first.cached, 2)": "no prompt has only one token",
        "_Work.measure: self._ask(self._text(words), 1) ->": (
            "another token of the first answer is fine"
        ),
        "_Work.round_trip: 1: -> 2:": "fewer requests measure just as well",
        "_Work.round_trip: _TRIPS + 1 -> _TRIPS + 2": "one request more measures just as well",
        "_Work.round_trip: _TRIPS + 1 -> _TRIPS - 1": "fewer requests measure just as well",
        "_Work: _tokens_per_word: float = 1.0 ->": "it is measured first",
        "measure_server.measure: retry_timeout=0.0 ->": "a tenth of a second more is fine",
        "measure_server: base_url: str": "one minute more is fine",
        "profile_server: 4 * _LONGEST -> 5": "half of it is enough in any case",
        "profile_server: context // 2 -> context // 3": "shorter prompts measure just as well",
    },
    "serving/vllm/adapter": {
        "VllmEngine.__init__: detokenize=False ->": "costs only time",
        "VllmEngine.__init__: skip_clone=True ->": "costs only time",
        "VllmEngine.wait: max(2, tokens": "a token later is fine",
    },
    "serving/vllm/binding": {
        "_bind: 2 * likeliest.count -> 3": "it hardly helps then",
        "_bind: at_server=True ->": "the plan's entropy source is for other engines",
        "_probe_logprobs: k <= facts.max_logprobs ->": "at equality both say the same",
        "_bind: 2 * likeliest.count < facts.vocabulary -> 2 * likeliest.count <=": (
            "it hardly helps then"
        ),
    },
    "serving/vllm/engine_model": {
        ": -1 -> -2": "even before all others",
        ": _ABANDON_SECONDS = 0.05 ->": "5 milliseconds more are fine",
        ": _LAST = 1000000 ->": "after all others, too",
        ": _SELDOM = 64 ->": "one token more is fine",
        "EngineModel.force: (0.0, 0.0, 0.0) -> (0": (
            "rules that ask for no figures do not read them"
        ),
        "Likeliest.rest: min(-row.likeliest[-1], 10000.0) ->": "nothing is that unlikely",
        "Likeliest: count: int = 64 ->": "one more bounds just as well",
    },
    "serving/vllm/plugin": {"_exit_on_error: flush=True ->": "stderr is flushed at each line"},
    "serving/vllm/route": {
        "PolicyRoute: shows_cached: bool = False ->": "the plugin always passes it",
        "_PolicyResponse: status_code: int = 200 ->": "replies bring their own",
    },
    "serving/vllm/self_test": {
        ": _ENDS_WITHIN = 30.0 ->": "three seconds more are fine",
        ": _NEAR = 0.25 ->": "about as close",
        ": _SECONDS = 300.0 ->": "half a minute more is fine",
        ": _TOKENS = 48 ->": "one token more tries just as well",
        "_SelfTest.__init__: 2 if max_logprobs < 0 else": "one token more tries just as well",
        "_SelfTest.__init__: min(2, max_logprobs) -> min(3": "one token more tries just as well",
        "_SelfTest._abort: seldom=False ->": "either way it has to end",
        "_SelfTest._abort: thinking.reach(1) ->": "a token later is fine",
        "_SelfTest._compare: abs(mine - theirs) > _NEAR ->": "differs at equality, by rounding",
        "_SelfTest._compare: row.likeliest[0] - row.likeliest[1] > _NEAR ->": (
            "differs at equality, by rounding"
        ),
        "_SelfTest._fetch_late: 0.0 if output.finished else 0.05 ->": "outputs are merged too",
        "_SelfTest._think: 2 * self.most -> 3 * self.most": "another place to wait",
        "_SelfTest._think: 2 * self.most // 3 -> 2 * self.most // 4": (
            "another place tries just as well"
        ),
        "_SelfTest._think: self.most // 3 -> self.most // 4": "another place tries just as well",
        "_SelfTest.run: self.most // 2 -> self.most // 3": "another place tries just as well",
        "_SelfTest.run: {'max_tokens': 2} ->": "one token more tries just as well",
    },
}
"""Reasons, by module and by how the description continues after it."""
