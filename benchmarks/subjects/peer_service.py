"""A peer behind FastAPI in one process, as one would write it, to stand beside `ade serve`.

It is trained with the first of each setting, then serves `POST /predict` on any free port, which it prints. The
endpoint is a coroutine: these models answer sooner than a thread is asked.
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks import library
from benchmarks.records import Places
from benchmarks.subjects.peers import Predict, train


class Body(BaseModel):
    """The body of a request."""

    texts: str | list[str]


def app_of(predict: Predict, names: tuple[str, ...]) -> FastAPI:
    """The application of a model that gives class numbers."""
    app = FastAPI()

    @app.post("/predict")
    async def answer(body: Body) -> dict[str, Any]:
        texts = [body.texts] if isinstance(body.texts, str) else body.texts
        return {"predictions": [{"label": names[number]} for number in predict(texts)]}

    return app


def main(peer: str, data: str, data_dir: str, models_dir: str) -> None:
    """Train a peer and serve it until the process is ended."""
    places = Places(Path(data_dir), Path(models_dir), Path(), "cpu")
    rows, _, _ = library.load_rows(places, {"data": data})
    app = app_of(train(peer, rows, places, 0, tune=False).predict, rows.names)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        print(json.dumps({"address": f"http://127.0.0.1:{bound.getsockname()[1]}"}), flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run([bound])


if __name__ == "__main__":
    main(*sys.argv[1:])
