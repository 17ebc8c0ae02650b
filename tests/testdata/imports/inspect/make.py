"""Write logs with inspect_ai and its scripted model: `python make_inspect.py OUT`."""

import shutil
import sys
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import choice, match
from inspect_ai.solver import generate, multiple_choice, system_message

LONG = "Six sevens: " + ", ".join(str(7 * k) for k in range(1, 7)) + ". " + "Let me see. " * 40
REPLIES = {
    "3 + 4": ("Three and four make seven. Wait, yes, seven.", "ANSWER: 7", "stop"),
    "12 - 5": (None, "<think>\nTwelve less five is seven.\n</think>\n\nANSWER: 7", "stop"),
    "6 * 7": (LONG, "", "max_tokens"),
    "9 + 9": (None, "ANSWER: 18", "stop"),
    "prime": ("Nine is three threes, eleven has no divisor.", "ANSWER: B", "stop"),
}


def reply(messages, tools, tool_choice, config):
    asked = messages[-1].text
    thinking, text, reason = next(r for words, r in REPLIES.items() if words in asked)
    content = [ContentText(text=text)]
    if thinking is not None:
        content.insert(0, ContentReasoning(reasoning=thinking))
    message = ChatMessageAssistant(content=content, model="mockllm/model", source="generate")
    return ModelOutput(
        model="mockllm/model",
        choices=[ChatCompletionChoice(message=message, stop_reason=reason)],
        usage=ModelUsage(input_tokens=9, output_tokens=9, total_tokens=18),
    )


def main(out: Path) -> None:
    golds = {"3 + 4": "7", "12 - 5": "7", "6 * 7": "42", "9 + 9": ["18", "eighteen"]}
    sums = Task(
        name="sums",
        dataset=MemoryDataset(
            [Sample(f"What is {q}?", target=g, id=f"sum-{q[0]}") for q, g in golds.items()]
        ),
        solver=[system_message("You are good at sums."), generate()],
        scorer=match(),
        epochs=2,
    )
    primes = Task(
        name="primes",
        dataset=MemoryDataset(
            [Sample("Which is a prime?", choices=["9", "11", "15"], target="B", id=1)]
        ),
        solver=[multiple_choice()],
        scorer=choice(),
    )
    model = get_model("mockllm/model", custom_outputs=reply)
    for task, form in ((sums, "eval"), (primes, "eval"), (primes, "json")):
        log = eval(task, model=model, log_dir=str(out / "log"), log_format=form, display="none")[0]
        assert log.status == "success", log.error
        shutil.move(log.location.removeprefix("file://"), out / f"{log.eval.task}.{form}")
    shutil.rmtree(out / "log")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
