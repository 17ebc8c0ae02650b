"""The gateway's log: a JSON object a line, of names, counts and durations.

No text of a request or a reply and no key comes here: what happened is named by fixed words and by
the classes of errors.  Messages are logged of an upstream's check alone, which holds no request.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from stopadvisor.serving.metrics import RequestRecord

__all__ = ["Log"]


@dataclass(frozen=True)
class Log:
    """Writes to one stream."""

    to: TextIO

    def write(self, event: str, **fields: Any) -> None:
        """Write what happened."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.to.write(json.dumps({"time": time, "event": event, **fields}) + "\n")
        self.to.flush()

    def request(self, record: RequestRecord) -> None:
        """Write a request that is over; fields that say nothing are left out."""
        fields = {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(record).items()
            if value not in (None, "")
        }
        fields["gen_ai.usage.reasoning.output_tokens"] = fields.pop("reasoning_tokens")
        self.write("request", **fields)
