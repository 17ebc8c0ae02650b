"""Results as JSON documents, texts, pictures and one page; formats, and never computes."""

__all__ = [
    "comparison", "documents", "headline", "html", "junit", "rewrite", "screen", "sheet", "sheets",
    "text", "words"
]  # fmt: skip
