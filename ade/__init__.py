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
    from ade.classifier import Classifier, Tagger
    from ade.codebook import Codebook
    from ade.compression.compress import compress
    from ade.compression.report import CompressionReport
    from ade.configuration import AdeConfig
    from ade.data.conll import TaggedDataset, load_tagged
    from ade.data.dataset import Dataset
    from ade.data.loading import load_dataset
    from ade.distillation import distill
    from ade.embedding import AnchorEmbedding
    from ade.encoder import Encoder
    from ade.errors import InputError
    from ade.evaluation import Evaluation, evaluate, evaluate_tagger
    from ade.explanation import Explanation
    from ade.inspector.reading import Inspector
    from ade.inspector.words import inspect_words
    from ade.integrations.onnx_export import export
    from ade.integrations.scikit_learn import AdeClassifier as AdeClassifier
    from ade.integrations.scikit_learn import AdeEncoder as AdeEncoder
    from ade.integrations.scikit_learn import AdeRegressor as AdeRegressor
    from ade.integrations.sentence_transformers import AdeModule as AdeModule
    from ade.model import AdeForSequenceClassification, AdeForTokenClassification, AdeModel
    from ade.runtime.load import load
    from ade.runtime.runtime import Runtime
    from ade.sentence_encoder import SentenceEncoder
    from ade.sentence_model import AdeForSentenceEmbedding
    from ade.settings import (
        PAPER,
        STRONG,
        Architecture,
        CompressionSettings,
        DistillationSettings,
        EncoderSettings,
        TeachingSettings,
        TrainingSettings,
    )
    from ade.teachers import Teacher, contextual_teacher, load_teacher
    from ade.training.distill_encoder import distill_encoder
    from ade.training.schedule import held_back
    from ade.training.sentence_teacher import SentenceTeacher
    from ade.training.soft_targets import LabelTeacher, taught
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
        "TeachingSettings",
        "TrainingSettings",
    ),
    "data.dataset": ("Dataset",),
    "data.loading": ("load_dataset",),
    "data.conll": ("TaggedDataset", "load_tagged"),
    "teachers": ("Teacher", "contextual_teacher", "load_teacher"),
    "codebook": ("Codebook",),
    "distillation": ("distill",),
    "embedding": ("AnchorEmbedding",),
    "configuration": ("AdeConfig",),
    "model": ("AdeForSequenceClassification", "AdeForTokenClassification", "AdeModel"),
    "sentence_model": ("AdeForSentenceEmbedding",),
    "explanation": ("Explanation",),
    "encoder": ("Encoder",),
    "sentence_encoder": ("SentenceEncoder",),
    "classifier": ("Classifier", "Tagger"),
    "evaluation": ("Evaluation", "evaluate", "evaluate_tagger"),
    "training.train": ("train",),
    "training.schedule": ("held_back",),
    "training.sentence_teacher": ("SentenceTeacher",),
    "training.distill_encoder": ("distill_encoder",),
    "training.soft_targets": ("LabelTeacher", "taught"),
    "compression.compress": ("compress",),
    "compression.report": ("CompressionReport",),
    "runtime.runtime": ("Runtime",),
    "runtime.load": ("load",),
    "inspector.words": ("inspect_words",),
    "inspector.reading": ("Inspector",),
    "integrations.onnx_export": ("export",),
    "integrations.scikit_learn": (
        "AdeClassifier",
        "AdeEncoder",
        "AdeRegressor",
    ),  # optional packages: not in __all__
    "integrations.sentence_transformers": ("AdeModule",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [  # noqa: RUF022 - in the order of the pipeline
    "Teacher", "load_teacher", "contextual_teacher", "Dataset", "load_dataset", "Codebook", "DistillationSettings",
    "distill", "AnchorEmbedding", "InputError", "AdeConfig", "AdeForSequenceClassification",
    "AdeForTokenClassification", "AdeModel", "Architecture", "Classifier", "Runtime", "load", "Explanation",
    "AdeForSentenceEmbedding", "Encoder", "SentenceEncoder", "SentenceTeacher", "EncoderSettings", "distill_encoder",
    "Evaluation", "evaluate", "PAPER", "STRONG", "TrainingSettings", "TeachingSettings", "LabelTeacher", "held_back",
    "taught", "train", "TaggedDataset", "load_tagged", "Tagger", "evaluate_tagger", "inspect_words", "Inspector",
    "export", "compress", "CompressionSettings", "CompressionReport",
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
    ("transformers.models.auto.configuration_auto", "ade.configuration"),
    ("transformers.models.auto.tokenization_auto", "ade.tokenizer"),
    ("transformers.models.auto.modeling_auto", "ade.model"),
    ("transformers.quantizers.auto", "ade.compression.quantizer"),
):
    if _awaited in sys.modules:
        importlib.import_module(_ours)
    else:
        sys.meta_path.insert(0, _ImportAfter(_awaited, _ours))
