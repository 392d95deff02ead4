"""LitServe with batches of at most 32 that wait 5 ms: ``serve_litserve.py FOLDER PRECISION PORT``."""

from typing import Any

import encoder
import litserve


class Embed(litserve.LitAPI):
    """A text to a vector."""

    def __init__(self, folder: str, precision: str):
        super().__init__(max_batch_size=32, batch_timeout=0.005, api_path="/embed")
        self.folder, self.precision = folder, precision

    def setup(self, device: str) -> None:
        self.encode = encoder.Encoder(self.folder, self.precision)

    def decode_request(self, request: dict[str, Any]) -> str:
        return str(request["text"])

    def predict(self, x: list[str]) -> list[list[float]]:
        return self.encode(x)

    def encode_response(self, output: list[float]) -> list[float]:
        return output


if __name__ == "__main__":
    folder, precision, port = encoder.given()
    # Thirty-two long texts take longer than the 30 s after which it gives up by itself.
    server = litserve.LitServer(Embed(folder, precision), accelerator="cpu", timeout=120)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")
