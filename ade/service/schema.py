"""Bodies of requests, which pydantic checks, and of answers, which only describe the service in /openapi.json."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ade.service.model import Query
from ade.settings import ServiceSettings

Label = str | bool | float | list[str | bool | float]  # as it was given for training


class Body(BaseModel):
    """A body without other fields than its own, whose values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def queries(self) -> list[Query]:
        """Return the texts of the body, and what is asked of each."""
        raise NotImplementedError


def _whole(given: Any) -> Any:
    """2.0 as 2: to JSON Schema both are integers."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def request_bodies(settings: ServiceSettings, dim: int) -> tuple[type[Body], type[Body], type[Body]]:
    """Make the bodies that ask for predictions, for vectors of at most `dim` dimensions, and about a single text."""
    Text = Annotated[str, Field(max_length=settings.max_chars, examples=["a wading bird with long legs"])]
    Texts = Text | Annotated[list[Text], Field(min_length=1, max_length=settings.max_texts)]
    TopK = Annotated[int, Field(ge=1, description="how many of the most probable labels are answered")]
    Dimensions = Annotated[int, Field(ge=1, le=dim)]
    Unused = Annotated[Any, Field(description="not used")]

    class PredictRequest(Body):
        texts: Texts
        top_k: Annotated[TopK, BeforeValidator(_whole)] | None = None

        def queries(self) -> list[Query]:
            return [Query(text, top_k=self.top_k) for text in _listed(self.texts)]

    class EmbeddingsRequest(Body):
        input: Texts
        dimensions: Annotated[Dimensions, BeforeValidator(_whole)] | None = None
        encoding_format: Literal["float", "base64"] = "float"
        model: Unused = None
        user: Unused = None

        def queries(self) -> list[Query]:
            return [Query(text, dim=self.dimensions, encoding=self.encoding_format) for text in _listed(self.input)]

    class TextRequest(Body):
        text: Text

        def queries(self) -> list[Query]:
            return [Query(self.text)]

    return PredictRequest, EmbeddingsRequest, TextRequest


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def problem_of(error: ValidationError) -> str:
    """What is wrong with a body, in a line.

    Where a string or a list may be given, pydantic has errors of both: the one that got further says more.
    """

    def progress(each: ErrorDetails) -> tuple[int, bool]:
        return len(each["loc"]), not each["type"].endswith("_type")

    most = max(error.errors(include_url=False, include_input=False), key=progress)
    place = [str(part) for i, part in enumerate(most["loc"]) if i == 0 or isinstance(part, int)]
    return ": ".join(filter(None, [".".join(place), most["msg"]]))


class Prediction(BaseModel):
    """A label, or a list of labels with a probability each, or a number."""

    label: Label
    probability: float | list[float] | None
    probabilities: dict[str, float]


class Tags(BaseModel):
    """The words of a text and the tag of each."""

    words: list[str]
    tags: list[str]


class Predictions(BaseModel):
    """The prediction of each text; of a tagger its words and their tags."""

    predictions: list[Prediction | Tags]


class Embedding(BaseModel):
    """A vector as numbers, or as float32 values in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(BaseModel):
    """Vectors as in OpenAI's API."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: dict[str, int]


class Error(BaseModel):
    """What is wrong with a request."""

    detail: str
