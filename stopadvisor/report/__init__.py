"""Results as sheets, texts, pictures and one page; formats, and never computes."""

__all__ = [
    "comparison", "headline", "html", "progress", "saved",
    "screen", "sheet", "sheets", "words",
]  # fmt: skip
