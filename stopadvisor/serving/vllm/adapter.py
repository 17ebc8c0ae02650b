"""All that the plugin uses of vLLM's internals; `self_test.py` tries it at start.

| what | where in vLLM |
|---|---|
| the chat route, and its handler's signature | ``app.routes`` |
| the handler for unexpected errors | ``app.exception_handlers`` |
| settings of model, cache, scheduler and parallelism | ``engine_client.vllm_config`` |
| the chat template given at start | ``vllm.renderers.chat_utils``; in 0.31 elsewhere |
| default sampling parameters | ``ModelConfig.get_diff_sampling_param`` |
| a prompt of token ids | ``vllm.inputs.tokens_input`` |
| flat lists of log-probabilities, parameters not copied | ``SamplingParams`` |
| when a request's next output comes | ``output_processor.request_states[...].stream_interval`` |
| the command line | ``vllm.entrypoints.cli.main`` (`cli/serve.py`) |

No other module imports vLLM, and this one only when vLLM calls the plugin.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stopadvisor.engines.trace_context import TRACE_CONTEXT
from stopadvisor.ground.errors import ModelError

__all__ = ["PATH", "EngineFacts", "VllmEngine", "error_handler", "facts_of", "take_route"]

PATH = "/v1/chat/completions"


def take_route(app: Any) -> None:
    """Replace the chat route's handler; requests passed on still reach the original.

    Raises `ModelError` without such a route: this vLLM has changed, or does not serve chats.
    """
    for route in app.routes:
        methods = getattr(route, "methods", None) or ()
        if getattr(route, "path", None) == PATH and "POST" in methods:
            break
    else:
        raise ModelError(f"expected vLLM's own route POST {PATH}, got none")
    original = route.endpoint

    @functools.wraps(original)  # FastAPI validates requests by the handler's signature
    async def create_chat_completion(request: Any, raw_request: Any) -> Any:
        policy_route = raw_request.app.state.stopadvisor
        return await policy_route.answer(raw_request, partial(original, request, raw_request))

    app.add_api_route(
        PATH,
        create_chat_completion,
        methods=["POST"],
        dependencies=route.dependencies,
        responses=route.responses,
    )
    # Else the original, still listed in vLLM 0.31, would match first.
    app.routes[app.routes.index(route)] = app.routes.pop()


def error_handler(app: Any) -> Callable[..., Any] | None:
    """Return the handler that turns unexpected errors into replies."""
    handler: Callable[..., Any] | None = app.exception_handlers.get(Exception)
    return handler


@dataclass(frozen=True)
class EngineFacts:
    """The engine's settings at start."""

    model: str
    """Folder, or name on the Hub."""
    tokenizer: str
    """Folder, or name on the Hub."""
    names: tuple[str, ...]
    """Served model names."""
    version: str
    context: int
    """Context length in tokens."""
    vocabulary: int
    """Number of tokens with a probability."""
    dtype: str
    quantization: str | None
    max_logprobs: int
    """Limit on log-probabilities per token; -1 for no limit."""
    chat_template: str | None
    """Replaces the model's own."""
    chat_template_kwargs: dict[str, Any] | None
    """Default arguments of the chat template."""
    sampling: dict[str, Any]
    """Default sampling parameters of requests."""
    max_output: int | None
    """The server's limit on decoded tokens per request, if any."""
    reasoning_parser: str
    """Separates thinking from the answer in replies passed on; empty for none."""
    prefix_caching: bool
    by_priority: bool
    replicas: int
    """Data-parallel replicas, each with its own cache."""
    api_servers: int
    """HTTP processes that share the engine."""

    def limit(self, prompt_tokens: int, requested: int | None) -> int:
        """Return how many tokens vLLM lets a request decode, given its own ``max_tokens``."""
        default = self.sampling.get("max_tokens") if requested is None else requested
        limits = (self.context - prompt_tokens, default, self.max_output)
        return min(n for n in limits if n is not None)


def facts_of(engine_client: Any, args: Namespace, version: str) -> EngineFacts:
    """Read the engine's settings."""
    try:
        from vllm.renderers.chat_utils import load_chat_template
    except ImportError:  # 0.31
        from vllm.entrypoints.chat_utils import load_chat_template

    config = engine_client.vllm_config
    model = config.model_config
    sampling = model.get_diff_sampling_param()
    overrides = model.override_generation_config or {}
    # The server's own generation config limits every request, not only the default.
    is_own = model.generation_config not in ("auto", "vllm")
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
        max_output=sampling.get("max_tokens") if is_own else overrides.get("max_new_tokens"),
        reasoning_parser=config.structured_outputs_config.reasoning_parser,
        prefix_caching=bool(config.cache_config.enable_prefix_caching),
        by_priority=config.scheduler_config.policy == "priority",
        replicas=config.parallel_config.data_parallel_size,
        api_servers=args.api_server_count or 1,
    )


class VllmEngine:
    """Sends requests to the engine."""

    def __init__(self, client: Any) -> None:
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._client, self._input, self._kinds = client, tokens_input, RequestOutputKind
        self._parameters = partial(
            SamplingParams, detokenize=False, flat_logprobs=True, skip_clone=True
        )

    def generate(
        self,
        ids: Sequence[int],
        parameters: Mapping[str, Any],
        name: str,
        *,
        final: bool,
        priority: int,
    ) -> AsyncGenerator[Any, None]:
        """Yield outputs as they come, or if `final` one at the end; closing aborts the request."""
        kind = self._kinds.FINAL_ONLY if final else self._kinds.DELTA
        outputs: AsyncGenerator[Any, None] = self._client.generate(
            self._input(list(ids)),
            self._parameters(output_kind=kind, **parameters),
            name,
            trace_headers=TRACE_CONTEXT.get() or None,
            priority=priority,
        )
        return outputs

    async def abort(self, name: str) -> None:
        """Abort a request; its last output has the tokens decoded so far."""
        await self._client.abort(name)

    def wait(self, name: str, tokens: int) -> None:
        """Deliver a request's next output only once it has this many tokens.

        Changes a running request's ``stream_interval``, which vLLM's API fixes at its start.
        It stays above 1: at 1 vLLM does not count the tokens it has delivered.
        """
        processor = self._client.output_processor
        for internal in processor.external_req_ids.get(name, ()):
            state = processor.request_states[internal]
            state.stream_interval = max(2, tokens - state.sent_tokens_offset)
