"""Where weights come from: the default model, a hub name, a local folder or a GGUF file.

Everything ends as a plain transformers model in eager attention, so the rest of the package sees one kind.
"""

from mechheads.sources.cache import cache_directory
from mechheads.sources.default import DEFAULT_MODEL, REFUSING_MODEL, default_folder
from mechheads.sources.errors import ModelSourceError
from mechheads.sources.load import Pretrained, load_pretrained

__all__ = [
    "DEFAULT_MODEL",
    "REFUSING_MODEL",
    "ModelSourceError",
    "Pretrained",
    "cache_directory",
    "default_folder",
    "load_pretrained",
]
