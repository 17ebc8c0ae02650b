"""Requests and replies under a policy, and the plan that an engine serves them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import MIXED_TASKS, Policy
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.probes.asking import OnStop, ProbePlan, Prompt, plan_cue
from stopadvisor.probes.trigger import NO_MARKER_IDS, MarkerTrigger
from stopadvisor.runs.ladder import Rung
from stopadvisor.workload.questions import TASKS, Question, content_key, render_messages

__all__ = [
    "Climbed", "OnStop", "PromptLike", "Reply", "Request", "RungAnswer", "make_requests",
    "policy_plan", "prompt_templates",
]  # fmt: skip

PromptLike = str | Sequence[Mapping[str, str]] | Question
"""A question's text, chat messages to send as they are, or a question of a workload."""


@dataclass(frozen=True)
class Request:
    """One prompt, formatted as at calibration."""

    prompt: Prompt
    task: str


@dataclass(frozen=True)
class RungAnswer:
    """The reply of one rung, or why there is none."""

    finished: bool
    """Whether the reply ended by itself; False if it was cut, or there is none."""
    text: str = ""
    """The visible reply, without thinking."""
    reasoning: str = ""
    """Its thinking, if the server shows it."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    """Thinking and answer."""
    mean_logprob: float | None = None
    """Mean over its tokens; None if unknown."""
    seconds: float = 0.0
    down: str | None = None
    """Why there is no reply to serve, in one line."""
    name: str = ""
    """The rung's name."""
    price: float = 0.0
    """Price in the unit of the ladder's prices."""

    def of(self, rung: Rung) -> RungAnswer:
        """Add the rung's name and the price at its rates."""
        first, cached, decoded = rung.price
        read = self.prompt_tokens - self.cached_tokens
        price = read * first + self.cached_tokens * cached + self.completion_tokens * decoded
        return replace(self, name=rung.name, price=price)


@dataclass(frozen=True)
class Climbed:
    """How one question climbed a ladder."""

    rung: str
    """The rung whose reply is served."""
    asked: tuple[RungAnswer, ...]
    """All replies asked for, in the order of the ladder."""
    gave_up: bool | None = None
    """True if the rule expected every cheap rung to be wrong, and skipped to the reference or
    served a reply anyway; None if not."""
    at: int = 0
    """Index in `asked` of the reply served; beyond its end if the caller asks the reference."""
    column: int | None = None
    """Number of the ladder's reply at which the rule served; None for the reference."""
    answer: str | None = None
    """The short answer that is served."""

    @property
    def price(self) -> float:
        """Price of all replies."""
        return sum(each.price for each in self.asked)

    @property
    def served(self) -> RungAnswer:
        """The reply that is served."""
        return self.asked[self.at]

    @property
    def discarded_tokens(self) -> int:
        """Tokens decoded for replies that are not served."""
        return sum(each.completion_tokens for k, each in enumerate(self.asked) if k != self.at)

    def to_dict(self) -> dict[str, Any]:
        """The record for a line of answers, which already has the text."""
        left_out = {"text", "reasoning", "mean_logprob", "seconds"}
        asked = [{k: v for k, v in vars(a).items() if k not in left_out} for a in self.asked]
        return {"rung": self.rung, "asked": asked, "gave_up": self.gave_up}


@dataclass(frozen=True)
class Reply:
    """The reply to one prompt, and what it cost."""

    text: str | None
    """The forced or the visible answer, as decoded; None if thinking was never closed."""
    answer: str | None
    """The short answer found in `text`; None if there is none."""
    stopped_at: int | None
    """Checkpoint at which the policy stopped; None if it did not."""
    budget: int | None
    """Thinking tokens at that checkpoint."""
    prompt_tokens: int
    think_tokens: int
    """Thinking tokens decoded.  For a stopped trace this includes tokens after the stop: as many as
    the closer has, to see that the trace did not end there; at a server also the rest of a request,
    if the next probe depends on markers."""
    probe_tokens: int
    """Tokens decoded by all probes of this prompt."""
    visible_tokens: int
    """Tokens decoded for the visible answer, including the closer and the ending token."""
    n_probes: int
    seconds: float
    """Wall time of the prompt, including prefill."""
    finish: Literal["stopped", "stop", "length"]
    """Stopped by the policy, ended by itself, or cut at the thinking cap."""
    thinking: str
    """The thinking as text, up to `budget` if it was stopped."""
    climbed: Climbed | None = None
    """How a ladder was climbed; `probe_tokens` then counts the replies not served."""

    @property
    def decoded_tokens(self) -> int:
        """All tokens decoded for this prompt."""
        return self.think_tokens + self.probe_tokens + self.visible_tokens


def policy_plan(
    policy: Policy, *, answer_cap: int | None = None, at_server: bool = False
) -> ProbePlan:
    """Return the plan that a policy was calibrated with.

    `answer_cap` defaults to the policy's, or to the usual cap if it names none.  With `at_server`
    log-probabilities are requested only if the policy reads them: a server may not return any.

    Raises
    ------
    PolicyError
        The policy comes from an archive, which records no cue, cap or sampling; the token ids of
        its markers are unknown; or it climbs a ladder.
    """
    terms = policy.terms
    if terms.ladder is not None:
        raise PolicyError(
            "the policy climbs a ladder of whole replies and stops no trace: `stopadvisor run` and "
            "`serve` climb with --ladder ladder.toml, a program of your own with `Policy.climb()`"
        )
    if terms.model is None:
        raise PolicyError(
            "the policy is bound to no model: it comes from an archive or recorded "
            "answers, which hold no cue, cap or sampling to run with; calibrate a run of your own"
        )
    if isinstance(policy.trigger, MarkerTrigger) and not policy.trigger.markers:
        raise PolicyError(NO_MARKER_IDS)
    assert terms.probe is not None  # a policy with a model has these
    assert terms.max_think is not None
    assert terms.sampling is not None
    source = terms.entropy_source
    if at_server and not policy.reads_logprobs:
        source = "none"
    elif source == "none":
        source = "full"  # a local model computes entropy anyway; the policy does not read it
    return ProbePlan(
        budgets=policy.budgets,
        cue=plan_cue(terms.probe.cue.text, is_open=terms.probe.open_cue),
        cap=terms.probe.cap,
        max_think=terms.max_think,
        answer_cap=answer_cap or terms.probe.answer_cap or ProbePlan.answer_cap,
        greedy=terms.sampling.greedy,
        temperature=terms.sampling.temperature,
        entropy=source,
        seed=terms.sampling.seed,
        on_stop=policy.on_stop,
    )


def make_requests(
    prompts: Sequence[PromptLike], policy: Policy, *, task: str | None = None
) -> list[Request]:
    """Turn prompts into requests, formatted as at calibration.

    Texts, and questions given as text, are put into the policy's prompt template; a ladder without
    a template sends them as they are.  `task` is that of prompts that are not a `Question`; it is
    required if the policy's own is ``mixed``.

    Raises
    ------
    PolicyError
        A task is not the policy's, or the policy covers several and none is named.
    """
    own, template = policy.terms.task, policy.terms.prompt_template
    if policy.ladder and template is None:
        template = "{question}"
    requests = []
    for prompt in prompts:
        question = prompt if isinstance(prompt, Question) else _question(prompt, task or own)
        if own not in (question.task, MIXED_TASKS) or question.task == MIXED_TASKS:
            wanted = "a task for each prompt" if own == MIXED_TASKS else f"task {own!r}"
            raise PolicyError(f"the policy needs {wanted}, got {question.task!r}")
        if isinstance(template, Mapping) and question.templated and question.task not in template:
            raise PolicyError(
                f"the policy has prompt templates for {', '.join(sorted(template))}, got a "
                f"question of task {question.task!r}"
            )
        text = template.get(question.task) if isinstance(template, Mapping) else template
        messages = tuple(render_messages(question, text))
        requests.append(Request(Prompt(question.key, messages), question.task))
    return requests


def prompt_templates(terms: PolicyTerms) -> dict[str, str]:
    """Text around a question, containing ``{question}``, for each task that the policy answers.

    Empty if questions are sent as they are.  A task without a template of its own is left out.
    """
    template: str | Mapping[str, str] | None = terms.prompt_template
    tasks = TASKS if terms.task == MIXED_TASKS else (terms.task,)
    if template is None:
        return {}
    texts = dict.fromkeys(tasks, template) if isinstance(template, str) else template
    return {task: texts[task] for task in tasks if task in texts}


def _question(prompt: str | Sequence[Mapping[str, str]], task: str) -> Question:
    templated = isinstance(prompt, str)
    chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = tuple(dict(message) for message in chat)
    key = content_key(messages)
    return Question(key[:12], key, messages, None, task, templated=templated)
