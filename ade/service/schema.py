"""Bodies of requests, which pydantic checks, and of answers, which only describe the service in /openapi.json."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from ade.settings import ServiceSettings

SHOWN = 3  # errors of a body
Label = str | bool | float | list[str | bool | float]  # as it was given for training


def _whole(given: Any) -> Any:
    """2.0 as 2: to JSON Schema both are integers."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


class Body(BaseModel):
    """A body without other fields than its own, whose values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Bodies(NamedTuple):
    """The bodies of requests for predictions, for vectors, and for what is done with one text."""

    predict: type[Body]
    embed: type[Body]
    text: type[Body]


def request_bodies(settings: ServiceSettings, dim: int, is_encoder: bool) -> Bodies:
    """Make the bodies within the limits; vectors have `dim` dimensions, those of an encoder may be truncated."""
    text = Annotated[str, Field(max_length=settings.max_chars, examples=["a wading bird with long legs"])]
    texts = text | Annotated[list[text], Field(min_length=1, max_length=settings.max_texts)]
    top = Field(ge=1, description="how many of the most probable labels are answered")
    top_k = Annotated[int, top, BeforeValidator(_whole)]
    dimensions = Annotated[int, Field(ge=1 if is_encoder else dim, le=dim), BeforeValidator(_whole)]
    unused = Annotated[Any, Field(description="not used")]
    return Bodies(
        create_model("PredictRequest", __base__=Body, texts=texts, top_k=(top_k | None, None)),
        create_model(
            "EmbeddingsRequest", __base__=Body, input=texts, dimensions=(dimensions | None, None),
            encoding_format=(Literal["float", "base64"], "float"), model=(unused, None), user=(unused, None),
        ),
        create_model("TextRequest", __base__=Body, text=text),
    )  # fmt: skip


def problem_of(error: ValidationError) -> str:
    """What is wrong with a body, in a line.

    Where a string or a list may be given, pydantic has errors of both: those that got further say more.
    """
    errors = error.errors(include_url=False, include_input=False)
    deepest = max(len(each["loc"]) for each in errors)
    errors = [each for each in errors if len(each["loc"]) == deepest]
    errors = [each for each in errors if not each["type"].endswith("_type")] or errors
    lines = []
    for each in errors[:SHOWN]:
        place = ".".join(str(part) for i, part in enumerate(each["loc"]) if i == 0 or isinstance(part, int))
        lines.append(f"{place}: {each['msg']}" if place else each["msg"])
    return "; ".join(lines)


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


class Explanation(BaseModel):
    """A prediction taken apart: biases, words and n-grams add up to the scores."""

    text: str
    label: Label
    labels: list[str]
    probabilities: dict[str, float]
    scores: list[float]
    bias: list[float]
    lexicon_bias: list[float]
    words: Annotated[list[dict[str, Any]], Field(description="what each adds to the scores, in order of the labels")]
    ngrams: Annotated[list[dict[str, Any]], Field(description="of the lexicon: where they stand, what they add")]


class Vector(BaseModel):
    """A vector as numbers, or as float32 values in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(BaseModel):
    """Vectors as in OpenAI's API."""

    object: Literal["list"]
    data: list[Vector]
    model: str
    usage: dict[str, int]


class Model(BaseModel):
    """What is served, and within which limits."""

    name: str
    kind: Annotated[str, Field(description="classifier, tagger or encoder")]
    problem: str | None
    labels: list[str]
    max_tokens: int
    dim: Annotated[int | None, Field(description="width of the vectors")]
    limits: dict[str, float]


class Health(BaseModel):
    """Whether the service is ready or stopping."""

    status: Literal["ready", "stopping"]
    version: str


class Error(BaseModel):
    """What is wrong with a request."""

    detail: str
