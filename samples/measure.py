"""Measure the tiny reasoner on a workload with plain transformers, without StopAdvisor's engines.

``python samples/measure.py samples/arithmetic.jsonl`` prints the five-way profile, the natural
accuracy, the accuracy of forced answers at each checkpoint, and how well each signal ranks right
answers above wrong ones.  Every answer is greedy, in float32.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.generation import GenerationMixin

from signals import print_signals
from stopadvisor.ground.constants import DEFAULT_CUE, MARKERS, PAPER_BUDGETS, PROMPT_TEMPLATES
from vocabulary import END_THINK, THINK

BATCH = 128
MAX_THINK = 960


@dataclass
class Trajectory:
    """One question with its trace and its forced answers."""

    gold: str
    category: str
    prompt: list[int]
    """Ids up to and with the opener."""
    trace: list[int] = field(default_factory=list)
    """Thinking ids between opener and closer."""
    natural: str = ""
    """The answer after thinking to the end."""
    closed: bool = False
    """Whether the model closed its thinking by itself."""
    answers: list[str] = field(default_factory=list)
    """Forced answers at the checkpoints, and last the one after the whole trace."""
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    probe_tokens: list[int] = field(default_factory=list)
    markers: list[int] = field(default_factory=list)


def profile(trajectory: Trajectory, n_checkpoints: int) -> str:
    """Return which of the paper's five kinds a trajectory is, ending in the natural answer."""
    right = [a == trajectory.gold for a in trajectory.answers[:n_checkpoints]]
    right.append(trajectory.natural == trajectory.gold)
    if right[-1]:
        flips = sum(a != b for a, b in pairwise(right))
        return "early_solved" if right[0] else "beneficial" if flips == 1 else "oscillating"
    return "harmful" if any(right) else "unsolved"


def scaled_budgets(mean_trace: float) -> list[int]:
    """Scale the shape of the paper's budgets so that the last is about 1.6 mean traces."""
    top = PAPER_BUDGETS[-1]
    return sorted({round(b / top * 1.6 * mean_trace) for b in PAPER_BUDGETS})


class Reasoner:
    """A model and its tokenizer, answering in batches."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
        self.model: GenerationMixin = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        )
        self.pad: int = self.tokenizer.pad_token_id
        self.end: int = self.tokenizer.eos_token_id
        self.end_think: int = self.tokenizer.convert_tokens_to_ids(END_THINK)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with nothing added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def prompt(self, question: str, task: str) -> list[int]:
        """Return a question's ids up to and with the opener of thinking."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": PROMPT_TEMPLATES[task].format(question=question)}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=True,
        )
        return self.encode(f"{text}{THINK}")

    @torch.inference_mode()
    def go_on(
        self, prefixes: list[list[int]], most: int
    ) -> list[tuple[list[int], list[float], list[float]]]:
        """Continue each prefix greedily: ids to the end token, log-probabilities, entropies."""
        results: dict[int, tuple[list[int], list[float], list[float]]] = {}
        order = sorted(range(len(prefixes)), key=lambda i: len(prefixes[i]))
        for begin in range(0, len(order), BATCH):
            chosen = order[begin : begin + BATCH]
            width = max(len(prefixes[i]) for i in chosen)
            ids = torch.full((len(chosen), width), self.pad)
            for row, i in enumerate(chosen):
                ids[row, width - len(prefixes[i]) :] = torch.tensor(prefixes[i])
            out = self.model.generate(
                ids,
                attention_mask=(ids != self.pad).long(),
                max_new_tokens=most,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
            logs = torch.stack(out.logits, 1).log_softmax(-1)  # (n_rows, n_new, n_vocabulary)
            new = out.sequences[:, width:]
            best = logs.gather(-1, new[..., None])[..., 0]
            entropy = -(logs.exp() * logs).sum(-1)
            for row, i in enumerate(chosen):
                written = new[row].tolist()
                n = written.index(self.end) if self.end in written else len(written)
                results[i] = (written[:n], best[row, :n].tolist(), entropy[row, :n].tolist())
        return [results[i] for i in range(len(prefixes))]

    def answer(self, ids: list[int]) -> str:
        """Return the answer in what follows the thinking."""
        text: str = self.tokenizer.decode(ids)
        return text.rpartition("Final answer:")[2].strip()


def run(reasoner: Reasoner, rows: list[dict[str, str]]) -> list[Trajectory]:
    """Let the model think about and answer every question."""
    trajectories = [
        Trajectory(r["gold"], r["category"], reasoner.prompt(r["question"], r["task"]))
        for r in rows
    ]
    written = reasoner.go_on([t.prompt for t in trajectories], MAX_THINK)
    for trajectory, (ids, _, _) in zip(trajectories, written, strict=True):
        trajectory.closed = reasoner.end_think in ids
        cut = ids.index(reasoner.end_think) if trajectory.closed else len(ids)
        trajectory.trace = ids[:cut]
        trajectory.natural = reasoner.answer(ids[cut + 1 :]) if trajectory.closed else ""
    return trajectories


def probe(reasoner: Reasoner, trajectories: list[Trajectory], budgets: list[int]) -> None:
    """Force an answer at every budget, and one after the whole trace."""
    suffix = [reasoner.end_think, *reasoner.encode(DEFAULT_CUE)]
    asked: dict[tuple[int, ...], int] = {}
    for t in trajectories:
        for budget in [*budgets, len(t.trace)]:
            asked.setdefault((*t.prompt, *t.trace[:budget], *suffix), len(asked))
    replies = reasoner.go_on([list(prefix) for prefix in asked], 6)
    for t in trajectories:
        for budget in [*budgets, len(t.trace)]:
            index = asked[(*t.prompt, *t.trace[:budget], *suffix)]
            ids, logs, entropies = replies[index]
            text = reasoner.tokenizer.decode(t.trace[:budget]).lower()
            t.answers.append(reasoner.answer(ids))
            t.logprobs.append(sum(logs) / max(len(logs), 1))
            t.entropies.append(sum(entropies) / max(len(entropies), 1))
            t.probe_tokens.append(len(ids) + 1)
            t.markers.append(sum(text.count(marker.lower()) for marker in MARKERS))


def report(trajectories: list[Trajectory], budgets: list[int]) -> None:
    """Print the figures."""
    n = len(trajectories)
    lengths = [len(t.trace) for t in trajectories]
    natural = sum(t.natural == t.gold for t in trajectories) / n
    agree = sum(t.natural == t.answers[-1] for t in trajectories) / n
    print(f"questions {n}, mean trace {sum(lengths) / n:.1f} tokens, longest {max(lengths)}")
    print(f"closed by itself {sum(t.closed for t in trajectories) / n:.3f}")
    print(f"natural accuracy {natural:.3f}; forced at the end agrees {agree:.3f}")
    counts = Counter(profile(t, len(budgets)) for t in trajectories)
    print("profile " + "  ".join(f"{k} {counts[k] / n:.3f}" for k in PROFILE))
    for j, budget in enumerate(budgets):
        right = sum(t.answers[j] == t.gold for t in trajectories) / n
        live = sum(length > budget for length in lengths) / n
        print(f"  budget {budget:4d}  accuracy {right:.3f}  still thinking {live:.3f}")
    for category in sorted({t.category for t in trajectories}):
        group = [t for t in trajectories if t.category == category]
        kinds = Counter(profile(t, len(budgets)) for t in group)
        shares = "  ".join(f"{k} {kinds[k] / len(group):.2f}" for k in PROFILE)
        print(f"  {category} ({len(group)}): {shares}")


PROFILE = ("early_solved", "beneficial", "harmful", "unsolved", "oscillating")


def main() -> None:
    """Parse the options and measure."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path, nargs="+", help="JSONL files")
    parser.add_argument("--model", type=Path, default=here / "tiny-reasoner")
    parser.add_argument("--limit", type=int, help="only this many questions")
    options = parser.parse_args()
    reasoner = Reasoner(options.model)
    for path in options.workload:
        lines = path.read_text(encoding="utf-8").splitlines()
        trajectories = run(reasoner, [json.loads(line) for line in lines[: options.limit]])
        mean = sum(len(t.trace) for t in trajectories) / len(trajectories)
        budgets = scaled_budgets(mean)
        probe(reasoner, trajectories, budgets)
        print(f"== {path.name}")
        report(trajectories, budgets)
        print_signals(trajectories, budgets)


if __name__ == "__main__":
    main()
