"""The endpoint plugin: vLLM calls it while it builds its server, and then sends it chat requests.

`POST /v1/chat/completions` goes through here; what the policy does not cover goes to the handler
that vLLM had put there, as it came.  vLLM goes on without a plugin that fails to load, so this
module imports next to nothing, and whatever is wrong later ends the process in one line.  The one
module that imports vLLM, when vLLM calls it.
"""

from __future__ import annotations

import functools
import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from stopadvisor.errors import ModelError, StopAdvisorError
from stopadvisor.printable import printable

if TYPE_CHECKING:
    from stopadvisor.serving.vllm.binding import EngineAccess, EngineFacts

__all__ = ["StopAdvisorPlugin"]

_PATH = "/v1/chat/completions"
_log = logging.getLogger("vllm.stopadvisor")  # below vLLM's own, so that it is shown with it


class StopAdvisorPlugin:
    """What vLLM's `EndpointPlugin` asks for."""

    name = "stopadvisor"
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Take the place of the chat's handler, which stays for what is passed on."""
        with _one_line():
            from stopadvisor.serving.policy_files import load_policies
            from stopadvisor.serving.vllm.settings import PluginSettings, check_vllm

            self._version = check_vllm()
            self._settings = PluginSettings.of_environment()
            self._policies = load_policies(self._settings.policy, self._settings.require_signature)
            route = _chat_route(app)
        app.add_api_route(
            _PATH,
            _handler(route.endpoint),
            methods=["POST"],
            dependencies=route.dependencies,
            responses=route.responses,
        )
        app.add_middleware(_Marked, server=app, state=app.state)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Hold the policies against the engine; from here on requests are answered."""
        with _one_line():
            from stopadvisor.engines.local_tokenizer import (
                LoadedTokenizer,
                generation_settings,
                load_tokenizer,
                quiet,
            )
            from stopadvisor.serving.metrics import Metrics
            from stopadvisor.serving.vllm.answering import PolicyRoute
            from stopadvisor.serving.vllm.binding import bind

            facts = _facts(engine_client, args, self._version)
            loaded = load_tokenizer(facts.tokenizer)
            if facts.tokenizer != facts.model:
                with quiet():
                    generation = generation_settings(facts.model)
                loaded = LoadedTokenizer(loaded.tokenizer, generation)
            bound = bind(
                self._policies,
                facts,
                loaded,
                _access(engine_client),
                any_text=self._settings.any_text,
            )
        for remark in bound.remarks:
            _log.warning("%s", printable(remark))
        how = "in its shadow" if self._settings.shadow else "under it"
        _log.info("policy %s: requests that it covers are answered %s", bound.policy.digest, how)
        metrics = Metrics()
        metrics.policy.labels(facts.names[0], bound.policy.digest[:8]).set(1)
        state.stopadvisor = PolicyRoute(
            bound,
            metrics,
            shadow=self._settings.shadow,
            shows_cached=bool(args.enable_prompt_tokens_details),
        )
        if self._settings.audit is not None and bound.policy.kind == "stop":
            with _one_line():
                from stopadvisor.serving.vllm.auditing import EngineAudits

                audits = EngineAudits(bound.policy, self._settings.audit, metrics)
            state.stopadvisor.after_reply = audits
            state.stopadvisor.is_shadowed = audits.is_shadowed


class _Marked:
    """Middleware: every reply to a chat request carries the header, also an error.

    What vLLM's handler of unforeseen errors would say outside of all middleware is said here.
    """

    def __init__(self, app: Any, *, server: Any, state: Any) -> None:
        self.app, self.server, self.state = app, server, state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(_PATH):
            await self.app(scope, receive, send)
            return
        from starlette.datastructures import MutableHeaders
        from starlette.requests import Request

        from stopadvisor.serving.chat_reply import HEADER, header_value
        from stopadvisor.serving.vllm.answering import ROUTE

        began = False

        async def mark(message: Any) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                digest = self.state.stopadvisor.bound.policy.digest
                value = header_value(scope.get(ROUTE, "passthrough"), "error", digest)
                MutableHeaders(scope=message).setdefault(HEADER, value)
            await send(message)

        try:
            await self.app(scope, receive, mark)
        except Exception as error:
            handler = self.server.exception_handlers.get(Exception)
            if began or handler is None:
                raise
            response = await handler(Request(scope, receive), error)
            await response(scope, receive, mark)
            raise


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


def _chat_route(app: Any) -> Any:
    """Find the route that is there.

    Raises
    ------
    ModelError
        There is none: this vLLM is built otherwise, or serves no chats.
    """
    for route in app.routes:
        methods = getattr(route, "methods", None) or ()
        if getattr(route, "path", None) == _PATH and "POST" in methods:
            return route
    raise ModelError(f"expected vLLM's own route POST {_PATH}, got none")


def _handler(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the handler; a request is read and checked by vLLM as for its own."""

    @functools.wraps(original)
    async def create_chat_completion(request: Any, raw_request: Any) -> Any:
        route = raw_request.app.state.stopadvisor
        return await route.answer(raw_request, partial(original, request, raw_request))

    return create_chat_completion


def _facts(engine_client: Any, args: Namespace, version: str) -> EngineFacts:
    """Read what the engine was started with."""
    from vllm.renderers.chat_utils import load_chat_template

    from stopadvisor.serving.vllm.binding import EngineFacts

    config = engine_client.vllm_config
    model = config.model_config
    sampling = model.get_diff_sampling_param()
    overrides = model.override_generation_config or {}
    own = model.generation_config not in ("auto", "vllm")  # a file of the server's own caps all
    return EngineFacts(
        model=model.model,
        tokenizer=model.tokenizer,
        names=tuple(args.served_model_name or [args.model]),
        version=version,
        context=model.max_model_len,
        vocabulary=model.get_vocab_size(),
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=model.quantization,
        max_logprobs=model.max_logprobs,
        chat_template=load_chat_template(args.chat_template),
        chat_template_kwargs=args.default_chat_template_kwargs or None,
        sampling=sampling,
        max_output=sampling.get("max_tokens") if own else overrides.get("max_new_tokens"),
        reasoning_parser=config.structured_outputs_config.reasoning_parser,
        prefix_caching=bool(config.cache_config.enable_prefix_caching),
        by_priority=config.scheduler_config.policy == "priority",
        replicas=config.parallel_config.data_parallel_size,
    )


def _access(engine_client: Any) -> EngineAccess:
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    from stopadvisor.serving.vllm.binding import EngineAccess

    def make(*, final: bool = False, **fields: Any) -> Any:
        kind = RequestOutputKind.FINAL_ONLY if final else RequestOutputKind.DELTA
        return SamplingParams(
            detokenize=False, flat_logprobs=True, output_kind=kind, skip_clone=True, **fields
        )

    return EngineAccess(engine_client, tokens_input, make, _waiting(engine_client.output_processor))


def _waiting(processor: Any) -> Callable[[str, int], None]:
    """Return what tells vLLM when to bring a request's next output.

    Its ``stream_interval`` is fixed for a request by those who ask from outside; in here it may
    change.  Never below 2: with 1 vLLM does not count what it brought.
    """

    def wait(name: str, tokens: int) -> None:
        for own in processor.external_req_ids.get(name, ()):
            state = processor.request_states[own]
            state.stream_interval = max(2, tokens - state.sent_tokens_offset)

    return wait
