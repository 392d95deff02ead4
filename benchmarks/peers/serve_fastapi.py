"""FastAPI with transformers as users write it: ``serve_fastapi.py FOLDER PRECISION PORT [FORWARDS]``.

A route that is a plain function runs in FastAPI's thread pool, so that up to 40 requests compute at the same time, each
with all threads of torch. ``FORWARDS``: how many may; they share torch's threads then.
"""

import sys
from contextlib import nullcontext
from threading import BoundedSemaphore

import encoder
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Body(BaseModel):
    text: str


def make_app(folder: str, precision: str, forwards: int) -> FastAPI:
    """``forwards``: 0 for as many at once as come."""
    encode, app = encoder.Encoder(folder, precision), FastAPI()
    turn = BoundedSemaphore(forwards) if forwards else nullcontext()
    if forwards:
        torch.set_num_threads(max(torch.get_num_threads() // forwards, 1))

    @app.get("/health")
    def health() -> str:
        return "ok"

    @app.post("/embed")
    def embed(body: Body) -> list[float]:
        with turn:
            return encode([body.text])[0]

    return app


if __name__ == "__main__":
    folder, precision, port = encoder.given()
    forwards = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    uvicorn.run(make_app(folder, precision, forwards), host="127.0.0.1", port=port, log_level="warning")
