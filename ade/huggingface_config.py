"""AdeConfig: the configuration of a model as transformers knows it, made of the same values.

A file of its own, as are tokenizer and models: `ade/__init__.py` imports each in the midst of importing transformers.
"""

from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import AutoConfig

from ade.configuration import MODEL_TYPE


class AdeConfig(PretrainedConfig):
    """What `config.json` holds."""

    model_type = MODEL_TYPE

    def __init__(self, **values: Any) -> None:
        for name in ("model_type", "transformers_version"):
            values.pop(name, None)
        super().__init__(**values)


AutoConfig.register(MODEL_TYPE, AdeConfig)
