"""`ade.load`: a trained model, ready to use."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ade.backends import backend_for
from ade.configuration import CLASSIFIER, CODEBOOK, ENCODER, TAGGER, check_kind
from ade.folder import Saved

if TYPE_CHECKING:
    from ade.classifier import Classifier
    from ade.encoder import Encoder
    from ade.tagger import Tagger

CLASSES = {CLASSIFIER: ("classifier", "Classifier"), TAGGER: ("tagger", "Tagger"), ENCODER: ("encoder", "Encoder")}


def load(source: str | Path, device: str = "cpu", threads: int = 0, **download: Any) -> "Classifier | Tagger | Encoder":
    """Load a trained model from a folder or by its name on the Hugging Face hub.

    On the CPU numpy alone runs it, by `threads` threads (0 for one per core), whether torch is installed or not;
    `cuda`, and `auto` where there is a GPU, need torch. `download` are arguments for the hub, as `revision`.
    """
    saved = Saved.read(source, **download)
    if saved.config.kind == CODEBOOK:
        check_kind(source, CODEBOOK, CLASSIFIER)
    return model_from(saved, device, threads)


def model_from(saved: Saved, device: str = "cpu", threads: int = 0) -> "Classifier | Tagger | Encoder":
    """Return a model that is in memory already, ready to use."""
    module, name = CLASSES[saved.config.kind]
    kind = getattr(import_module(f"ade.{module}"), name)
    model: Classifier | Tagger | Encoder = kind(saved, backend_for(saved, device, threads))
    return model
