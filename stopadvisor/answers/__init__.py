"""Short answers: the normal form that decides which are equal, and grading against gold."""

__all__ = ["grading", "normal_form"]
