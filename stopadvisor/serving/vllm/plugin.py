"""The endpoint plugin: vLLM calls it while it builds its server, and then sends it chat requests.

`POST /v1/chat/completions` goes through here; what the policy does not cover goes to the handler
that vLLM had put there, as it came.  vLLM goes on without a plugin that fails to load, so this
module imports next to nothing, and whatever is wrong later ends the process in one line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stopadvisor.ground.errors import StopAdvisorError
from stopadvisor.ground.printable import printable

__all__ = ["StopAdvisorPlugin"]

_log = logging.getLogger("vllm.stopadvisor")  # below vLLM's own, so that it is shown with it


class StopAdvisorPlugin:
    """What vLLM's `EndpointPlugin` asks for."""

    name = "stopadvisor"
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Take the place of the chat's handler, which stays for what is passed on."""
        with _one_line():
            from stopadvisor.serving.serve_settings import load_policies
            from stopadvisor.serving.vllm.adapter import take_route
            from stopadvisor.serving.vllm.plugin_settings import check_vllm, settings_of
            from stopadvisor.serving.vllm.route import MarkedReplies

            self._version = check_vllm()
            self._settings = settings_of()
            self._policies = load_policies(self._settings)
            take_route(app)
            app.add_middleware(MarkedReplies, server=app, state=app.state)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Hold the policies against the engine; from here on requests are answered."""
        with _one_line():
            from stopadvisor.engines.model_files import load_tokenizer
            from stopadvisor.serving.audits import Auditors
            from stopadvisor.serving.metrics import Metrics
            from stopadvisor.serving.vllm.adapter import VllmEngine, facts_of
            from stopadvisor.serving.vllm.plugin_settings import is_tried
            from stopadvisor.serving.vllm.route import PolicyRoute

            facts = facts_of(engine_client, args, self._version)
            tokenizer = load_tokenizer(facts.tokenizer, settings_of=facts.model)
            metrics, settings = Metrics(), self._settings
            loop = asyncio.get_running_loop()
            metrics.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
            # vLLM has no other way out from inside: open requests end at once.
            auditors = Auditors(settings.audit, metrics, os._exit)
            route = PolicyRoute(
                settings,
                facts,
                tokenizer,
                VllmEngine(engine_client),
                metrics,
                auditors,
                shows_cached=bool(args.enable_prompt_tokens_details),
            )
            await route.use(self._policies)
        if not is_tried(self._version):
            _log.warning("vLLM %s is newer than was tried; it passed the self-test", self._version)
        state.stopadvisor = route
        reloads: set[asyncio.Task[None]] = set()  # the loop itself holds no task

        def reload() -> None:
            again = loop.create_task(route.reload())
            reloads.add(again)
            again.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)


@contextmanager
def _one_line() -> Iterator[None]:
    """End the process with a line and the documented code, where the policy cannot serve."""
    try:
        yield
    except StopAdvisorError as error:
        message, code = str(error), error.exit_code
    except (AttributeError, ImportError) as error:  # a package is missing, or vLLM is another
        message, code = f"the plugin does not fit this environment: {error}", 2
    else:
        return
    print(f"stopadvisor: {printable(message)}", file=sys.stderr, flush=True)  # noqa: T201
    raise SystemExit(code)
