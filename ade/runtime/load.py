"""`ade.load`: a trained model, ready to predict."""

from pathlib import Path
from typing import Any

from ade.data.problems import ENCODER, TAGGER
from ade.files import kind_of


def load(folder: str | Path, device: str = "cpu") -> Any:
    """Load a trained model from a folder or by its name on the Hugging Face hub.

    On the CPU a classifier or a regression model is a `Runtime`: numpy alone, whether torch is installed or not. On
    another device it is a `Classifier`, and a tagger is a `Tagger`; these need torch. An encoder is an `Encoder`. To
    train a model further, to save it or to push it to the hub, load the PyTorch model itself with
    `Classifier.from_pretrained`.
    """
    if kind_of(folder) == ENCODER:
        from ade.encoder import Encoder

        return Encoder.load(folder, device)
    if kind_of(folder) == TAGGER:
        from ade.classifier import Tagger

        return Tagger.load(folder, device)
    if device != "cpu":
        from ade.classifier import Classifier

        return Classifier.load(folder, device)
    from ade.runtime.runtime import Runtime

    return Runtime.load(folder)
