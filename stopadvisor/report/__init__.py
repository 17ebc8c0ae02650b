"""Results as sheets, texts, pictures and one page; formats, and never computes."""

__all__ = [
    "comparison", "from_assessment", "headline", "html", "junit", "saved", "screen",
    "sheet", "sheets", "words"
]  # fmt: skip
