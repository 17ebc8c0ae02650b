"""Mistakes in serving that nothing can tell from the original."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, dict[str, str]] = {
    "serving/answer_file": {
        "AnswerRecord.to_json: allow_nan=False ->": "no figure is NaN",
        "AnswerRecord.to_json: ensure_ascii=False ->": "read back alike",
    },
    "serving/answering": {
        ": _GROUP_BATCHES = 4 ->": "a batch more is as good",
        ": cap=1 ->": "a ladder's replies are not probed: nothing reads it",
        ": max_think=1 ->": "a ladder's replies are not probed: nothing reads it",
        "_timed_comparison: timed and full_seconds ->": "questions that were timed took time",
        "answer_workload: sort_keys=True ->": "keys come in one order here",
    },
    "serving/audit_log": {
        ": _LARGEST = 1000000000000.0 ->": "no clock is so wrong, nor so right",
        ": _CHECK_SECONDS = 1.0 ->": "a tenth of a second later is as good",
        ": check_circular=False ->": "no record holds itself",
        "AuditLog.__init__: (0, 0, 0.0) -> (0, 0, 0.1)": "long ago, too",
        "AuditLog.__init__: (0, 0, 0.0) -> (0, 1, 0.0)": "`_open` sets it",
        "AuditLog.__init__: max(self._size - 1, 0) -> max(self._size - 1, 1)": (
            "a log that is opened again has a header"
        ),
        "AuditLog.__init__: os.pread(self._file.fileno(), 1, max(self._size - 1, 0)) ->"
        " os.pread(self._file.fileno(), 2": "one byte follows",
        "AuditLog.__init__: self, folder: Path": "a byte, or nine days, more are as good",
        "AuditLog._append: 0 <= record['t'] - self._checked < _CHECK_SECONDS ->": (
            "it looks once more, or at the next record"
        ),
        "AuditLog._append: end - len(data) ->": "its own line is no reset",
        "AuditLog._append: end > self._size + len(data) ->": "no byte is read then",
        "AuditLog._append: record['t'] - self._checked ->": "it looks once more",
        "AuditLog._append: self._size + len(data) ->": "no byte is read then",
        "AuditLog._apply_resets: end - self._size ->": "its own line is no reset",
        "AuditLog._apply_resets: max(end - self._size, 0) ->": "a byte is no reset",
        "AuditLog._check_in_place: self._number += 1 ->": "numbers need only rise",
        "AuditLog.write: path.stat().st_mtime < oldest ->": "a moment later is as good",
        "AuditLog.write: self._number += 1 ->": "numbers need only rise",
        "AuditLog.write: self._size >= self._max_bytes ->": "a byte more is as good",
        "_fault: -_LARGEST < time < _LARGEST -> -_LARGEST < time <= ": (
            "differs at one number, which no record holds"
        ),
        "_fault: -_LARGEST < time < _LARGEST -> -_LARGEST <= time": (
            "differs at one number, which no record holds"
        ),
        "_fault: -_LARGEST < value < _LARGEST -> -_LARGEST < value <= ": (
            "differs at one number, which no record holds"
        ),
        "_fault: -_LARGEST < value < _LARGEST -> -_LARGEST <= value": (
            "differs at one number, which no record holds"
        ),
        "_merged.timed: latest = 0.0 ->": "records are younger",
        "_merged: :2 -> :3": "no two servers have one number",
    },
    "serving/audits": {
        ": _SHOWN_EVERY = 100 ->": "a request later is as good",
        "Auditor._picks: int.from_bytes(digest[:8], 'big') < self.settings.share": (
            "differs for one id in 2^64"
        ),
        "Auditor: secrets.token_bytes(32) ->": "a byte more is as good",
    },
    "serving/gateway/app": {
        ": 2 ** 10 -> 2 ** 11": "where a body is parsed changes no answer",
        ": 64 * 2 ** 10 -> 65": "where a body is parsed changes no answer",
        ": _CHECK_SECONDS = 5.0 ->": "half a second more is as good",
        "Gateway._find_policy: size > _SMALL + self.policies.longest_prompt -> size >=": (
            "a byte less is as good"
        ),
        "Gateway._find_policy: size > _SMALL -> size >=": "a byte less is as good",
        "Gateway._rendered: size > _SMALL ->": "a byte less is as good",
        "Gateway._under_policy: secrets.randbits(31) ->": "a bit more is as good",
        "_finish: shadow=False ->": "it follows no rule",
        "_offload: size <= _SMALL ->": "a byte less is as good",
    },
    "serving/gateway/forward": {
        ": 4 * 2 ** 20 -> 5": "a list of another MiB is as short",
        "Forwarder.__init__: keepalive_timeout=4.0 ->": "less than 5 s, too",
        "Forwarder._at: limits.between / 10 -> limits.between / 11": (
            "the limit is renewed more often"
        ),
        "Forwarder._at: loop.time() > renewed + limits.between / 10 ->": "the same moment",
        "Forwarder._at: renewed + limits.between / 10 ->": "the limit is renewed more often",
        "Forwarder.get: answer.status >= 300 ->": "no server answers with 300",
        "Forwarder.get: len(body) > _MOST_BYTES ->": "a byte less is as good",
        "Forwarder.get: self._timeouts.connect + 3 -> self._timeouts.connect + 4": (
            "a second more is as good"
        ),
    },
    "serving/gateway/intake": {
        ": 4 * _MOST_BYTES -> 5": "room for another body is as good",
        ": 64 * 2 ** 20 -> 65": "another MiB is as good",
        ": _DECODINGS = 4 ->": "a layer more is as good",
        ": _RETRY_AFTER = 5 ->": "a second more is as good",
        "Intake._fill: message.get('more_body', False) ->": "the server always says",
        "Intake._fill: self._held + len(piece) > _HELD_BYTES ->": "a byte less is as good",
    },
    "serving/gateway/policies": {
        ": 4 * 2 ** 20 -> 5": "another MiB is as good",
        ": _TOKEN_BYTES = 16 ->": "a generous bound in any case",
        "PolicySet._open: (limits.total, 0.0) ->": "a tenth of a second more is as good",
        "PolicySet._open_ladder: patience=0.0 ->": "a tenth of a second more is as good",
        "PolicySet.longest_prompt: default=0 ->": "a few bytes more than no prompt are no prompt",
    },
    "serving/gateway/server": {
        ": 64 * 2 ** 10 -> 65": "another KiB is as good",
        ": HEAD_SECONDS = 10.0 ->": "a second more is as good",
        ": _ACCEPTED_AT_ONCE = 64 ->": "a connection more is as good",
        ": _BACKLOG = 2048 ->": "a connection more is as good",
        ": _KEEP_ALIVE = 75 ->": "a second more is as good",
        ": _OTHER_FILES = 128 ->": "a file more is as good",
        "ClientConnection.__init__: self._unread = 0 ->": "a byte less is as good",
        "ClientConnection.data_received: self._unread > HEAD_BYTES ->": "a byte less is as good",
        "ClientConnection.on_body: self._unread = 0 ->": "a byte less is as good",
        "ClientConnection.on_headers_complete: self._unread = 0 ->": "a byte less is as good",
        "ClientConnection.on_message_complete: self._unread = 0 ->": "a byte less is as good",
        "ConnectionLimit.wait: len(self.connections) > self._most ->": (
            "a connection less is as good"
        ),
        "GatewayServer.of: access_log=False ->": "nothing listens to it",
        "GatewayServer.of: max(1, round(settings.grace)) ->": "a second more is as good",
        "GatewayServer.startup: sockets or () ->": "the queue is uvicorn's own",
        "listen: sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1) ->": "on is on",
        "run: ends = 0.0 ->": "long ago, too",
        "run: max(0.0, ends - time.monotonic()) ->": "a tenth of a second more is as good",
        "serve: logging.getLogger('uvicorn').propagate = False ->": "nothing listens further up",
    },
    "serving/metrics": {
        ": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000) -> (0.001,": (
            "another bound of a bucket is as good"
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
    "serving/responder": {": KEEP_ALIVE_SECONDS = 15.0 ->": "a second more is as good"},
    "serving/serve_settings": {
        "AuditSettings: at_once: int = 2 ->": "an audit more is as good",
        "GatewaySettings: check_every: float = 10.0 ->": "a second more is as good",
        "GatewaySettings: concurrency: int = 512 ->": "a request more is as good",
        "GatewaySettings: grace: float = 30.0 ->": "three seconds more are as good",
        "GatewaySettings: retry_timeout: float = 300.0 ->": "half a minute more is as good",
        "Timeouts: between: float = 60.0 ->": "six seconds more are as good",
        "Timeouts: connect: float = 2.0 ->": "a fifth of a second more is as good",
        "Timeouts: first: float = 120.0 ->": "twelve seconds more are as good",
        "Timeouts: probe: float = 10.0 ->": "a second more is as good",
        "Timeouts: total: float = 600.0 ->": "a minute more is as good",
    },
    "serving/server_profile": {
        ": (32, 1024) ->": "a prompt of a token more measures as well",
        ": _ROUNDS = 3 ->": "a round more measures as well",
        ": _TRIPS = 5 ->": "a request more measures as well",
        "_Work._ask: Measurement(1, 1, prompt - cached, cached, decoded, seconds) ->"
        " Measurement(2": "nothing reads how many were asked at once",
        "_Work._prompt: max(1, int(tokens / self._tokens_per_word)) ->": "a word more is as good",
        "_Work.measure: 2 * _SHORT -> 3": "a longer first prompt is as good",
        "_Work.measure: 2 * batch -> 3": "more requests measure as well",
        "_Work.measure: 4 * batch -> 5": "more requests measure as well",
        "_Work.measure: max(first.uncached + first.cached, 1) -> max(first.uncached +"
        " first.cached, 2)": "no prompt has but one token",
        "_Work.measure: self._ask(self._text(words), 1) ->": (
            "another token of the first answer is as good"
        ),
        "_Work.round_trip: 1: -> 2:": "fewer requests measure as well",
        "_Work.round_trip: _TRIPS + 1 -> _TRIPS + 2": "a request more measures as well",
        "_Work.round_trip: _TRIPS + 1 -> _TRIPS - 1": "fewer requests measure as well",
        "_Work: _tokens_per_word: float = 1.0 ->": "it is measured first",
        "measure_server.measure: retry_timeout=0.0 ->": "a tenth of a second more is as good",
        "measure_server: base_url: str": "a minute more is as good",
        "profile_server: 4 * _LONGEST -> 5": "half of it is enough in any case",
        "profile_server: context // 2 -> context // 3": "shorter prompts measure as well",
    },
    "serving/vllm/adapter": {
        "VllmEngine.__init__: detokenize=False ->": "costs time alone",
        "VllmEngine.__init__: skip_clone=True ->": "costs time alone",
        "VllmEngine.wait: max(2, tokens": "a token later is as good",
    },
    "serving/vllm/binding": {
        "_bind: 2 * likeliest.count -> 3": "it helps hardly then",
        "_bind: 2 * likeliest.count < facts.vocabulary -> 2 * likeliest.count <=": (
            "it helps hardly then"
        ),
    },
    "serving/vllm/engine_model": {
        ": -1 -> -2": "even before all others",
        ": _ABANDON_SECONDS = 0.05 ->": "5 milliseconds more are as good",
        ": _LAST = 1000000 ->": "after all others, too",
        ": _SELDOM = 64 ->": "a token more is as good",
        "EngineModel.force: (0.0, 0.0, 0.0) -> (0.0, ": (
            "no rule reads them that asks for no figures"
        ),
        "EngineModel.live: self, trace": "it is always given",
        "Likeliest.rest: min(-row.likeliest[-1], 10000.0) ->": "nothing is so unlikely",
        "Likeliest: count: int = 64 ->": "one more bounds as well",
    },
    "serving/vllm/route": {"_PolicyResponse: status_code: int = 200 ->": "replies bring their own"},
    "serving/vllm/self_test": {
        ": _ENDS_WITHIN = 30.0 ->": "three seconds more are as good",
        ": _NEAR = 0.25 ->": "about as near",
        ": _SECONDS = 300.0 ->": "half a minute more is as good",
        ": _TOKENS = 48 ->": "a token more tries as well",
        "_SelfTest.__init__: 2 if max_logprobs < 0 else": "a token more tries as well",
        "_SelfTest.__init__: min(2, max_logprobs) -> min(3": "a token more tries as well",
        "_SelfTest._abort: seldom=False ->": "either way it has to end",
        "_SelfTest._abort: thinking.reach(1) ->": "a token later is as good",
        "_SelfTest._compare: abs(mine - theirs) > _NEAR ->": "differs at equality, by rounding",
        "_SelfTest._compare: row.likeliest[0] - row.likeliest[1] > _NEAR ->": (
            "differs at equality, by rounding"
        ),
        "_SelfTest._fetch_late: 0.0 if output.finished else 0.05 ->": "outputs are merged as well",
        "_SelfTest._think: 2 * self.most -> 3 * self.most": "another place to wait at",
        "_SelfTest._think: 2 * self.most // 3 -> 2 * self.most // 4": (
            "another place tries as well"
        ),
        "_SelfTest._think: self.most // 3 -> self.most // 4": "another place tries as well",
        "_SelfTest.run: self.most // 2 -> self.most // 3": "another place tries as well",
        "_SelfTest.run: {'max_tokens': 2} ->": "a token more tries as well",
    },
}
"""Why, by module and how the description goes on after it."""
