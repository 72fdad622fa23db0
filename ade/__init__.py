"""Adaptive Dictionary Embeddings: small, fast text classifiers that can be inspected.

Importing this package is quick: the modules of its names are imported when a name is first used. After `import ade`,
the Auto classes of transformers load saved models, and models with packed tables, whichever of the two packages is
imported first.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ade.errors import missing_package

if TYPE_CHECKING:
    from ade.classifier import Classifier
    from ade.codebook import Codebook, CodedTable
    from ade.compression.compress import compress
    from ade.compression.report import CompressionReport
    from ade.configuration import Config
    from ade.data.dataset import Dataset
    from ade.data.sources import load_dataset, load_tagged
    from ade.data.tags import TaggedDataset
    from ade.distillation import distill
    from ade.encoder import Encoder
    from ade.encoders.distil import distill_encoder
    from ade.encoders.teacher import SentenceTeacher
    from ade.errors import InputError
    from ade.evaluation import Evaluation, evaluate, evaluate_tagger
    from ade.explanation import Explanation
    from ade.folder import Saved
    from ade.huggingface_config import AdeConfig
    from ade.inspector.reading import Inspector
    from ade.inspector.words import inspect_words
    from ade.integrations.onnx import export
    from ade.integrations.scikit_learn import AdeClassifier as AdeClassifier
    from ade.integrations.scikit_learn import AdeEncoder as AdeEncoder
    from ade.integrations.scikit_learn import AdeRegressor as AdeRegressor
    from ade.integrations.sentence_transformers import AdeModule as AdeModule
    from ade.loading import load
    from ade.model import (
        AdeForSentenceEmbedding,
        AdeForSequenceClassification,
        AdeForTokenClassification,
        AdeModel,
    )
    from ade.settings import (
        PAPER,
        STRONG,
        Architecture,
        CompressionSettings,
        DistillationSettings,
        EncoderSettings,
        TrainingSettings,
    )
    from ade.tagger import Tagger
    from ade.teachers import Teacher, load_teacher
    from ade.training.schedule import validation_split
    from ade.training.soft_targets import LabelTeacher, with_soft_targets
    from ade.training.train import train

__version__ = "0.1.0"

_MODULES = {  # module -> its public names
    "errors": ("InputError",),
    "settings": (
        "PAPER",
        "STRONG",
        "Architecture",
        "CompressionSettings",
        "DistillationSettings",
        "EncoderSettings",
        "TrainingSettings",
    ),
    "data.dataset": ("Dataset",),
    "data.sources": ("load_dataset", "load_tagged"),
    "data.tags": ("TaggedDataset",),
    "teachers": ("Teacher", "load_teacher"),
    "codebook": ("Codebook", "CodedTable"),
    "folder": ("Saved",),
    "distillation": ("distill",),
    "configuration": ("Config",),
    "huggingface_config": ("AdeConfig",),
    "model": ("AdeForSentenceEmbedding", "AdeForSequenceClassification", "AdeForTokenClassification", "AdeModel"),
    "explanation": ("Explanation",),
    "encoder": ("Encoder",),
    "classifier": ("Classifier",),
    "tagger": ("Tagger",),
    "evaluation": ("Evaluation", "evaluate", "evaluate_tagger"),
    "training.train": ("train",),
    "training.schedule": ("validation_split",),
    "encoders.teacher": ("SentenceTeacher",),
    "encoders.distil": ("distill_encoder",),
    "training.soft_targets": ("LabelTeacher", "with_soft_targets"),
    "compression.compress": ("compress",),
    "compression.report": ("CompressionReport",),
    "loading": ("load",),
    "inspector.words": ("inspect_words",),
    "inspector.reading": ("Inspector",),
    "integrations.onnx": ("export",),
    "integrations.scikit_learn": (
        "AdeClassifier",
        "AdeEncoder",
        "AdeRegressor",
    ),  # optional packages: not in __all__
    "integrations.sentence_transformers": ("AdeModule",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [  # noqa: RUF022 - in the order of the pipeline
    "Teacher", "load_teacher", "Dataset", "load_dataset", "Saved", "Config", "Codebook", "CodedTable",
    "DistillationSettings", "distill", "InputError", "AdeConfig", "AdeForSequenceClassification",
    "AdeForTokenClassification", "AdeModel", "Architecture", "Classifier", "load", "Explanation",
    "AdeForSentenceEmbedding", "Encoder", "SentenceTeacher", "EncoderSettings", "distill_encoder",
    "Evaluation", "evaluate", "PAPER", "STRONG", "TrainingSettings", "LabelTeacher",
    "validation_split", "with_soft_targets", "train", "TaggedDataset", "load_tagged", "Tagger", "evaluate_tagger",
    "inspect_words", "Inspector", "export", "compress", "CompressionSettings", "CompressionReport",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ade' has no attribute '{name}'")
    try:
        return getattr(importlib.import_module(f"ade.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        missing = missing_package(f"ade.{name}", error)
        if missing is None:
            raise
        raise ModuleNotFoundError(missing, name=error.name) from None


def __dir__() -> list[str]:
    return sorted([*_MODULE_OF, "__version__"])


class _ImportAfter(MetaPathFinder, Loader):
    """An import hook: imports the module `ours` as soon as the module `awaited` has been imported.

    Config, models and the quantization method are registered with transformers, which takes importing transformers and
    torch: seconds that `import ade` must not cost. So they are registered once the program itself imports the modules
    they are registered with.
    """

    def __init__(self, awaited: str, ours: str) -> None:
        self.awaited, self.ours = awaited, ours
        self.loader: Any = None

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.awaited:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        importlib.import_module(self.ours)


for _awaited, _ours in (
    ("transformers.models.auto.configuration_auto", "ade.huggingface_config"),
    ("transformers.models.auto.tokenization_auto", "ade.tokenizer"),
    ("transformers.models.auto.modeling_auto", "ade.model"),
    ("transformers.quantizers.auto", "ade.compression.quantizer"),
):
    if _awaited in sys.modules:
        importlib.import_module(_ours)
    else:
        sys.meta_path.insert(0, _ImportAfter(_awaited, _ours))
