"""The endpoint plugin, which vLLM loads by name while it builds its HTTP server.

vLLM ignores a plugin that fails to import and serves without it.  So this module imports almost
nothing, and any later problem ends the process with one line on stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stopadvisor.ground.errors import StopAdvisorError
from stopadvisor.ground.printable import printable

__all__ = ["StopAdvisorPlugin"]

_log = logging.getLogger("vllm.stopadvisor")  # a child of vLLM's own, to be shown with it


class StopAdvisorPlugin:
    """Implements vLLM's `EndpointPlugin`."""

    name = "stopadvisor"
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Load the policies and take over the chat route."""
        with _exit_on_error():
            from stopadvisor.serving.serve_settings import load_policies
            from stopadvisor.serving.vllm.adapter import take_route
            from stopadvisor.serving.vllm.plugin_settings import check_vllm, settings_of
            from stopadvisor.serving.vllm.route import MarkedReplies

            self._version = check_vllm()
            self._settings = settings_of(os.environ)
            self._policies = load_policies(self._settings)
            take_route(app)
            app.add_middleware(MarkedReplies, server=app, state=app.state)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Check the policies against the engine and start answering."""
        with _exit_on_error():
            from stopadvisor.engines.model_files import load_tokenizer
            from stopadvisor.serving.audits import Auditors
            from stopadvisor.serving.metrics import Metrics
            from stopadvisor.serving.serve_settings import reload_on_hangup
            from stopadvisor.serving.vllm.adapter import VllmEngine, facts_of
            from stopadvisor.serving.vllm.plugin_settings import is_tried
            from stopadvisor.serving.vllm.route import PolicyRoute

            facts = facts_of(engine_client, args, self._version)
            tokenizer = load_tokenizer(facts.tokenizer, settings_of=facts.model)
            metrics, settings = Metrics(), self._settings
            loop = asyncio.get_running_loop()
            metrics.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
            # vLLM cannot be shut down gracefully from inside: open requests end at once.
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
        reload_on_hangup(route.reload)


@contextmanager
def _exit_on_error() -> Iterator[None]:
    """End the process with one line and the documented exit code."""
    try:
        yield
    except StopAdvisorError as error:
        message, code = str(error), error.exit_code
    except (AttributeError, ImportError) as error:  # a package is missing, or vLLM has changed
        message, code = f"the plugin does not fit this environment: {error}", 2
    else:
        return
    print(f"stopadvisor: {printable(message)}", file=sys.stderr, flush=True)  # noqa: T201
    raise SystemExit(code)
