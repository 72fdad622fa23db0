"""POST /inspect, GET /about and the page."""

import asyncio

import httpx

from ade.classifier import Classifier
from ade.inspector.reading import Inspector
from ade.runtime.runtime import Runtime
from ade.service.inspections import MAX_WAITING
from tests.conftest import PATIENT
from tests.service.conftest import (
    SMALL,
    got,
    posted,
    running,
)


def test_inspection(folder):
    inspector = Inspector(Classifier.load(folder, "cpu"))
    with running(Runtime.load(folder), SMALL, lambda: inspector) as address:
        assert got(address, "/about").json() == inspector.about()
        text = "the rocket and the bank"
        assert posted(address, [text], "/inspect").json() == {"readings": [inspector.read(text)]}
        assert posted(address, text, "/inspect").json()["readings"][0]["label"] == Runtime.load(folder).predict(text)
        assert "2 texts; at most 1" in posted(address, [text, text], "/inspect").json()["detail"]
        assert posted(address, "a" * 2001, "/inspect").status_code == 422

        async def ask() -> list[int]:
            async with httpx.AsyncClient(base_url=address, timeout=PATIENT) as client:
                many = (client.post("/inspect", json={"texts": text}) for _ in range(40))
                return [answer.status_code for answer in await asyncio.gather(*many)]

        found = asyncio.run(ask())
        assert set(found) <= {200, 503}
        assert found.count(200) >= MAX_WAITING


def test_a_model_that_cannot_be_inspected(folder, tmp_path):
    def refuses() -> Inspector:
        return Inspector(Classifier.load(tmp_path, "cpu"))

    with running(Runtime.load(folder), SMALL, refuses) as address:
        for answer in (got(address, "/about"), posted(address, "a", "/inspect")):
            assert answer.status_code == 409
            assert "not a model folder" in answer.json()["detail"]
    with running(Runtime.load(folder)) as address:
        assert [got(address, path).status_code for path in ("/about", "/")] == [404, 404]
        assert posted(address, "a", "/inspect").status_code == 404
        assert not {"/about", "/inspect"} & set(got(address, "/openapi.json").json()["paths"])
