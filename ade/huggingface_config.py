"""AdeConfig: the configuration of a model as transformers knows it, made of the same values."""

from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import AutoConfig

from ade.configuration import MODEL_TYPE, Config, config_from_json


class AdeConfig(PretrainedConfig):
    """What `config.json` holds; `plain` gives it checked."""

    model_type = MODEL_TYPE

    def __init__(self, **values: Any) -> None:
        for name in ("model_type", "transformers_version"):
            values.pop(name, None)
        super().__init__(**values)

    @classmethod
    def of(cls, config: Config, vocabulary: int, dim: int) -> "AdeConfig":
        """Make the configuration of a model of this width from its settings."""
        return cls(**config.as_json(vocabulary, dim, {}))

    def plain(self) -> Config:
        """Return the settings; raises `InputError` for values that no model can have."""
        return config_from_json(self.to_dict())


AutoConfig.register(MODEL_TYPE, AdeConfig)
