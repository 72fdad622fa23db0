"""Adaptive Dictionary Embeddings: small, fast text classifiers you can look into.

Importing this package is cheap: names are loaded when they are first used. Saved models load through the Auto
classes of transformers after `import ade`, whichever of the two is imported first.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ade.codebook import Codebook
    from ade.configuration import AdeConfig
    from ade.data import load_dataset
    from ade.dataset import Dataset
    from ade.distillation import distill
    from ade.embedding import AnchorEmbedding
    from ade.encoders import contextual_teacher
    from ade.errors import InputError
    from ade.estimators import AdeClassifier as AdeClassifier
    from ade.estimators import AdeEncoder as AdeEncoder
    from ade.estimators import AdeRegressor as AdeRegressor
    from ade.evaluation import Evaluation, evaluate
    from ade.exporting import export
    from ade.fitting import held_back
    from ade.inference import Classifier
    from ade.inspection import inspect_words
    from ade.model import AdeForSequenceClassification, AdeForTokenClassification, AdeModel
    from ade.runtime import Runtime
    from ade.sentence import AdeModule as AdeModule
    from ade.settings import (
        PAPER,
        STRONG,
        Architecture,
        DistillationSettings,
        TeachingSettings,
        TrainingSettings,
    )
    from ade.tagged import TaggedDataset, load_tagged
    from ade.tagging import Tagger, evaluate_tagger
    from ade.teachers import Teacher, load_teacher
    from ade.teaching import LabelTeacher, taught
    from ade.training import train

__version__ = "0.1.0"

_HOMES = {
    "teachers": ("Teacher", "load_teacher"),
    "data": ("Dataset", "load_dataset"),
    "codebook": ("Codebook",),
    "settings": (
        "PAPER",
        "STRONG",
        "Architecture",
        "DistillationSettings",
        "TeachingSettings",
        "TrainingSettings",
    ),
    "encoders": ("contextual_teacher",),
    "runtime": ("Runtime",),
    "teaching": ("LabelTeacher", "taught"),
    "distillation": ("distill",),
    "embedding": ("AnchorEmbedding",),
    "errors": ("InputError",),
    "configuration": ("AdeConfig",),
    "model": ("AdeForSequenceClassification", "AdeForTokenClassification", "AdeModel"),
    "inference": ("Classifier",),
    "evaluation": ("Evaluation", "evaluate"),
    "fitting": ("held_back",),
    "tagged": ("TaggedDataset", "load_tagged"),
    "tagging": ("Tagger", "evaluate_tagger"),
    "training": ("train",),
    "exporting": ("export",),
    "inspection": ("inspect_words",),
    "estimators": (
        "AdeClassifier",
        "AdeEncoder",
        "AdeRegressor",
    ),  # not in __all__: these need packages that are optional
    "sentence": ("AdeModule",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [  # noqa: RUF022 - in the order of the pipeline
    "Teacher", "load_teacher", "contextual_teacher", "Dataset", "load_dataset", "Codebook", "DistillationSettings",
    "distill", "AnchorEmbedding", "InputError", "AdeConfig", "AdeForSequenceClassification",
    "AdeForTokenClassification", "AdeModel", "Architecture",
    "Classifier", "Runtime", "Evaluation", "evaluate", "PAPER", "STRONG", "TrainingSettings", "TeachingSettings",
    "LabelTeacher", "held_back", "taught", "train", "inspect_words", "TaggedDataset", "load_tagged", "Tagger",
    "evaluate_tagger",
    "export",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ade' has no attribute '{name}'")
    return getattr(importlib.import_module(f"ade.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


class _WhenLoaded(MetaPathFinder, Loader):
    """Imports one of our modules right after one of transformers' has been loaded, and not before."""

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


# Configs and models are registered with the Auto classes as soon as those exist; never sooner, to stay light.
for _awaited, _ours in (("configuration_auto", "ade.configuration"), ("modeling_auto", "ade.model")):
    if f"transformers.models.auto.{_awaited}" in sys.modules:
        importlib.import_module(_ours)
    else:
        sys.meta_path.insert(0, _WhenLoaded(f"transformers.models.auto.{_awaited}", _ours))
