"""All that we use of vLLM beyond its documented interface, in one place; `self_test.py` tries it.

| what | where vLLM has it |
|---|---|
| the chat's route, and its handler with its signature | ``app.routes`` |
| the handler of errors that nobody foresaw | ``app.exception_handlers`` |
| settings of model, cache, scheduler and parallelism | ``engine_client.vllm_config`` |
| a chat template that is named at start | ``vllm.renderers.chat_utils``; in 0.31 elsewhere |
| sampling where a request names none | ``ModelConfig.get_diff_sampling_param`` |
| an input of token ids | ``vllm.inputs.tokens_input`` |
| flat lists of log-probabilities, parameters not copied | ``SamplingParams`` |
| when a request's next output comes | ``output_processor.request_states[...].stream_interval`` |
| the command line | ``vllm.entrypoints.cli.main`` (`cli/serve.py`) |

The one module that imports vLLM, when vLLM calls the plugin.
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

__all__ = ["PATH", "EngineFacts", "VllmEngine", "facts_of", "take_route", "unforeseen"]

PATH = "/v1/chat/completions"


def take_route(app: Any) -> None:
    """Take the place of the chat's handler, which stays for what is passed on.

    Raises
    ------
    ModelError
        There is none: this vLLM is built otherwise, or serves no chats.
    """
    for route in app.routes:
        methods = getattr(route, "methods", None) or ()
        if getattr(route, "path", None) == PATH and "POST" in methods:
            break
    else:
        raise ModelError(f"expected vLLM's own route POST {PATH}, got none")
    original = route.endpoint

    @functools.wraps(original)  # vLLM reads and checks a request as for its own handler
    async def create_chat_completion(request: Any, raw_request: Any) -> Any:
        ours = raw_request.app.state.stopadvisor
        return await ours.answer(raw_request, partial(original, request, raw_request))

    app.add_api_route(
        PATH,
        create_chat_completion,
        methods=["POST"],
        dependencies=route.dependencies,
        responses=route.responses,
    )
    # vLLM 0.31 leaves the original, which would come first.
    app.routes[app.routes.index(route)] = app.routes.pop()


def unforeseen(app: Any) -> Callable[..., Any] | None:
    """Return what words the reply to an error that nobody foresaw."""
    handler: Callable[..., Any] | None = app.exception_handlers.get(Exception)
    return handler


@dataclass(frozen=True)
class EngineFacts:
    """What the engine was started with."""

    model: str
    """Folder, or name on the Hub."""
    tokenizer: str
    """The same of its tokenizer."""
    names: tuple[str, ...]
    """By which requests may call it."""
    version: str
    context: int
    """Most tokens of a sequence."""
    vocabulary: int
    """Tokens that have a probability."""
    dtype: str
    quantization: str | None
    max_logprobs: int
    """Most log-probabilities of a token; -1 for all."""
    chat_template: str | None
    """In place of the model's own."""
    chat_template_kwargs: dict[str, Any] | None
    """Default arguments of the chat template."""
    sampling: dict[str, Any]
    """What the engine fills in where a request names nothing."""
    max_output: int | None
    """Most tokens that any request may decode, where the server has a limit."""
    reasoning_parser: str
    """Splits thinking from the answer in replies that are passed on; empty for none."""
    prefix_caching: bool
    by_priority: bool
    replicas: int
    """Data-parallel copies, each with a cache of its own."""
    api_servers: int
    """Processes that answer HTTP before the one engine."""


def facts_of(engine_client: Any, args: Namespace, version: str) -> EngineFacts:
    """Read what the engine was started with."""
    try:
        from vllm.renderers.chat_utils import load_chat_template
    except ImportError:  # 0.31
        from vllm.entrypoints.chat_utils import load_chat_template

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
        api_servers=args.api_server_count or 1,
    )


class VllmEngine:
    """How the engine is asked."""

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
        """Yield outputs as they come, or one at the end; closing it aborts the request."""
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
        """End a request; what it has drawn comes with its last output."""
        await self._client.abort(name)

    def wait(self, name: str, tokens: int) -> None:
        """Have a request's next output brought only at a number of tokens.

        Its ``stream_interval`` is fixed for a request by those who ask from outside; in here it may
        change.  Never below 2: with 1 vLLM does not count what it brought.
        """
        processor = self._client.output_processor
        for own in processor.external_req_ids.get(name, ()):
            state = processor.request_states[own]
            state.stream_interval = max(2, tokens - state.sent_tokens_offset)
