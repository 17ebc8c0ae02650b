"""Short answers: the normal form that decides which are equal, and grades against gold."""

__all__ = [
    "function_grader", "grading", "math_worker", "normal_form", "numerals", "worker"
]  # fmt: skip
