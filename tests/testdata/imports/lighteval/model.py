"""A scripted model for `lighteval custom`: thinking between markers, then the reply."""

from lighteval.models.abstract_model import LightevalModel
from lighteval.models.model_output import ModelResponse
from lighteval.utils.cache_management import SampleCache


class Scripted(LightevalModel):
    tokenizer = None
    add_special_tokens = False
    max_length = 2048

    def __init__(self, config):
        self.config = config
        self._cache = SampleCache(config)

    def greedy_until(self, docs):
        return [
            ModelResponse(
                input=[{"role": "user", "content": doc.query}],
                text=[f"<think>\nFirst {doc.query.split()[1]}.\n</think>\n\n{doc.get_golds()[0]}"]
                * doc.num_samples,
            )
            for doc in docs
        ]

    def loglikelihood(self, docs):
        return [
            ModelResponse(logprobs=[-1.0] * len(doc.choices), argmax_logits_eq_gold=[False])
            for doc in docs
        ]

    loglikelihood_rolling = loglikelihood
