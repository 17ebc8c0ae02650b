"""A task of four sums for lighteval, as --custom-tasks wants it."""

from lighteval.metrics.metrics import Metrics
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc


def sums(line, task_name=None):
    return Doc(task_name=task_name, query=line["question"], choices=[line["answer"]], gold_index=0)


TASKS_TABLE = [
    LightevalTaskConfig(
        name="sums",
        prompt_function=sums,
        hf_repo="data",
        hf_subset="default",
        hf_avail_splits=["test"],
        evaluation_splits=["test"],
        few_shots_split=None,
        few_shots_select=None,
        metrics=[Metrics.exact_match],
        generation_size=256,
        stop_sequence=[],
    )
]
