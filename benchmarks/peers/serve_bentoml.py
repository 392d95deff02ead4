"""BentoML with adaptive batches of at most 32: ``bentoml serve serve_bentoml:Embed``, with FOLDER and PRECISION set."""

import os

import bentoml
import encoder


@bentoml.service(workers=1, traffic={"timeout": 120})
class Embed:
    """Texts to vectors."""

    def __init__(self) -> None:
        self.encode = encoder.Encoder(os.environ["FOLDER"], os.environ["PRECISION"])

    @bentoml.api(batchable=True, max_batch_size=32)
    def embed(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text."""
        return self.encode(texts)
