"""Sources of models: the default model, a hub name, a local folder or a GGUF file.

Each gives a plain transformers model with eager attention, so the rest of the package does not depend on the source.
"""

from mechheads.model.sources.converted_models import cache_directory
from mechheads.model.sources.default import DEFAULT_MODEL, REFUSING_MODEL, REFUSING_MODELS, default_folder
from mechheads.model.sources.load import Pretrained, load_pretrained
from mechheads.model.sources.source import ModelSourceError, Source

__all__ = [
    "DEFAULT_MODEL",
    "REFUSING_MODEL",
    "REFUSING_MODELS",
    "ModelSourceError",
    "Pretrained",
    "Source",
    "cache_directory",
    "default_folder",
    "load_pretrained",
]
