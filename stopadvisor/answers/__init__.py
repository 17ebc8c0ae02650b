"""Short answers: the normal form that decides which are equal, and grades against gold."""

__all__ = ["grading", "normal_form"]
