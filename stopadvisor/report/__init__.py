"""Results as sheets, texts, pictures and one page; formats, and never computes."""

__all__ = [
    "assessed", "comparison", "from_assessment", "headline", "html", "progress", "saved",
    "screen", "sheet", "sheets", "words",
]  # fmt: skip
