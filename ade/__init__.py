"""Adaptive Dictionary Embeddings: small, fast text classifiers that can be inspected.

Importing this package is quick: the modules of its names are imported when a name is first used. After `import ade`,
the Auto classes of transformers load saved models, and models with packed tables, whichever of the two packages is
imported first.
"""

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ade.errors import missing_package

if TYPE_CHECKING:
    from ade.codebook import Codebook as Codebook
    from ade.compression.compress import CompressionReport as CompressionReport, compress as compress
    from ade.data.dataset import Dataset as Dataset
    from ade.data.sources import load_dataset as load_dataset
    from ade.data.tags import TaggedDataset as TaggedDataset
    from ade.distillation import distill as distill
    from ade.encoders.distil import distill_encoder as distill_encoder
    from ade.encoders.teacher import SentenceTeacher as SentenceTeacher
    from ade.errors import InputError as InputError
    from ade.evaluation import evaluate as evaluate
    from ade.explanation import Explanation as Explanation
    from ade.folder import Saved as Saved
    from ade.huggingface_config import AdeConfig as AdeConfig
    from ade.inspector.reading import Inspector as Inspector
    from ade.inspector.words import inspect_words as inspect_words
    from ade.integrations.scikit_learn import (
        AdeClassifier as AdeClassifier,
        AdeEncoder as AdeEncoder,
        AdeRegressor as AdeRegressor,
    )
    from ade.integrations.sentence_transformers import AdeModule as AdeModule
    from ade.model import (
        AdeForSentenceEmbedding as AdeForSentenceEmbedding,
        AdeForSequenceClassification as AdeForSequenceClassification,
        AdeForTokenClassification as AdeForTokenClassification,
        AdeModel as AdeModel,
    )
    from ade.settings import (
        Architecture as Architecture,
        CompressionSettings as CompressionSettings,
        DistillationSettings as DistillationSettings,
        EncoderSettings as EncoderSettings,
        TrainingSettings as TrainingSettings,
    )
    from ade.teachers import Teacher as Teacher, load_teacher as load_teacher
    from ade.trained_model import (
        Classifier as Classifier,
        Encoder as Encoder,
        Tagger as Tagger,
        encode as encode,
        load as load,
    )
    from ade.training.soft_targets import LabelTeacher as LabelTeacher, with_soft_targets as with_soft_targets
    from ade.training.train import train as train

__version__ = "0.1.0"

_MODULES = {  # module -> its public names
    "errors": "InputError",
    "settings": "Architecture CompressionSettings DistillationSettings EncoderSettings TrainingSettings",
    "data.dataset": "Dataset",
    "data.sources": "load_dataset",
    "data.tags": "TaggedDataset",
    "teachers": "Teacher load_teacher",
    "codebook": "Codebook",
    "folder": "Saved",
    "distillation": "distill",
    "huggingface_config": "AdeConfig",
    "model": "AdeForSentenceEmbedding AdeForSequenceClassification AdeForTokenClassification AdeModel",
    "explanation": "Explanation",
    "trained_model": "Classifier Encoder Tagger encode load",
    "evaluation": "evaluate",
    "compression.compress": "CompressionReport compress",
    "training.soft_targets": "LabelTeacher with_soft_targets",
    "training.train": "train",
    "encoders.distil": "distill_encoder",
    "encoders.teacher": "SentenceTeacher",
    "inspector.reading": "Inspector",
    "inspector.words": "inspect_words",
    "integrations.scikit_learn": "AdeClassifier AdeEncoder AdeRegressor",
    "integrations.sentence_transformers": "AdeModule",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


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


class _ImportAfter(MetaPathFinder):
    """An import hook: imports the module `ours` as soon as the module `awaited` has been imported.

    Config, models and the quantization method are registered with transformers, which takes importing transformers and
    torch: seconds that `import ade` must not cost. So they are registered once the program itself imports the modules
    they are registered with.
    """

    def __init__(self, awaited: str, ours: str) -> None:
        self.awaited, self.ours = awaited, ours

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.awaited:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_both(module: ModuleType) -> None:
                execute(module)
                importlib.import_module(self.ours)

            loader.exec_module = execute_both
        return spec


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
