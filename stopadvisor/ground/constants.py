"""The paper's numbers and the tool's defaults, each with its source.

"Paper" is Dong, Qin and Shah, "When Does Learning to Stop Help? A Cost-Aware Study of Early
Exits in Reasoning Models"; sections and equations are named as there.
"""

from __future__ import annotations

# --- Probing (paper, "Checkpoint Probing" and "Experiments: Setup") -------------------------------

PAPER_BUDGETS = (0, 128, 192, 256, 384, 512, 640, 768, 1024, 1536)
"""The main budget grid in thinking tokens (Setup).  `--schedule grid` scales it to the model."""

PAPER_SCHEDULES = {
    "4-linear": (0, 256, 512, 1536),
    "6-linear": (0, 192, 384, 512, 768, 1536),
    "6-log": (0, 64, 192, 512, 1024, 1536),
    "8-hybrid": (0, 64, 128, 256, 384, 640, 1024, 1536),
    "8-linear": (0, 128, 256, 384, 512, 768, 1024, 1536),
    "14-dense": (0, 64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1536),
}
"""Checkpoint schedules of the paper's sweep (Appendix "Checkpoint Schedule Sweep")."""

PROBE_CAP = 48
"""A: most answer tokens of a probe (Section "Training and Metrics", Eq. for C^cap)."""

KNOWN_MARKERS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
)
"""Opener and closer of thinking for the models we know; users set them for others."""

DEFAULT_CUE = "\n\nFinal answer:"
"""Terse answer cue, after the closed thinking (Appendix "Reproducibility Manifest", Prompting)."""

CUES = {
    "terse": DEFAULT_CUE,
    "no-reasoning": "\n\nGive only the final answer, without reasoning.\nFinal answer:",
    "the-answer-is": "\n\nThe answer is",
}
"""Probe templates, named as in the paper (Appendix "Prompt and Decoding Robustness").  It does not
print the last two; their words are ours."""

PROMPT_TEMPLATES = {
    "math": '{question}\n\nGive the answer on the last line, after "Final answer:".',
    "numeric": '{question}\n\nGive the answer as a number on the last line, after "Final answer:".',
    "choice": (
        '{question}\n\nGive the letter of the right option on the last line, after "Final answer:".'
    ),
    "exact": (
        '{question}\n\nGive the answer and nothing else on the last line, after "Final answer:".'
    ),
}
"""User message of each task; the form of the answer follows the paper's probe."""

MARKERS = ("wait", "re-examine", "alternatively", "hold on", "I made an error")
"""Backtracking markers, matched case-insensitively (Appendix, Table "Deployment feature
definitions")."""

# --- Learned stopper (paper, Appendix "Reproducibility Manifest", Training) -----------------------

LOGISTIC_C = 1.0
LOGISTIC_MAX_ITER = 1000
N_FOLDS = 5

# --- Risk calibration (paper, Section "Lost-Correct Risk Calibration" and Appendix) --------------

PAPER_ALPHAS = (0.05, 0.10, 0.15, 0.20)
DEFAULT_ALPHA = 0.15
DEFAULT_DELTA = 0.05
PAPER_SPLIT_SEED = 123
PAPER_CALIBRATION_SHARE = 0.40
PAPER_BOOTSTRAP_RESAMPLES = 5000
PAPER_BOOTSTRAP_SEED = 20270207

# --- Our own limits -------------------------------------------------------------------------------

POLICY_HEADER = "X-StopAdvisor"
"""Header of every reply of a server under a policy: who answered, why, and under which policy."""

SMALL_WORKLOAD = 300
"""With fewer questions a test part costs more certainty than it gives: use 40/60/0."""

MOST_TRUNCATED = 0.10
"""Share of cut-off traces above which a certificate needs ``--despite truncated``."""
TRUNCATED_WARN = 0.05
"""Share of cut-off traces above which we warn: a cut-off question cannot be lost."""

LARGE_ALPHA = 0.2
"""`assess` warns, and `calibrate` refuses, if alpha exceeds this share of the full-thinking
accuracy: such a promise could lose more than one right answer in five."""

# --- Serving costs (paper, Section "Deployment Cost") ---------------------------------------------

PAPER_CACHED_WEIGHT = 0.1
"""Price of a token read from a prefix cache, in units of a decoded token."""

PAPER_OPERATING_GRID = (0.30, 0.95, 14)
"""start, stop, number of the thresholds of the learned rule's peak (published scripts)."""

# --- Sweeps of the paper's frontiers (published scripts; the text gives none) ---------------------

PAPER_PEAK_POINTS = 30
"""Evenly spaced thresholds, from the lowest to the highest score, of a scalar rule's peak."""
PAPER_VALIDATION_POINTS = 40
"""The same for validation-selected thresholds (the τ of run-stability there are 1 + 9k/39)."""
PAPER_LEAP_GRID = ((0.01, 0.5, 12), (0.3, 0.95, 8))
"""start, stop, number of the least leap, and of the least confidence, in the peak of
confidence-leap."""
PAPER_DEER_GRID = ((0.3, 0.99, 15), 8)
"""start, stop, number of the least confidence; number of least marker densities, from 0 to the
highest density."""
PAPER_PUMA_DENSITIES = 10
"""How many largest marker densities PUMA's peak tries with each run length, from 0 to the
highest density."""
PAPER_EAT_WINDOW = 3
"""Checkpoints in the window of EAT's variance, at matched risk."""
PAPER_EAT_GRID = ((2, 3, 4), (0.001, 1.0, 20))
"""Windows, and start, stop, number of the largest variance, in EAT's peak."""
PAPER_SPLIT_SEEDS = (123, 456, 789, 1011, 2025)
"""Seeds of the split sensitivity (Appendix "Calibration Split Sensitivity")."""

# --- Trajectory regimes (ours: cut-offs that map the paper's eight profiles to its verdicts with
# room on both sides; paper, Table "Trajectory decomposition") ------------------------------------

UNSOLVED_FULL_BUDGET = 0.50
EARLY_SOLVED_SCALAR = 0.38
EARLY_SOLVED_LEARNED_MAX = 0.60
OSCILLATING_MATERIAL = 0.04
REGIME_DRAWS = 2000
