"""Text that a model writes by itself."""

from __future__ import annotations

from mechheads.generation.generate import generate
from mechheads.generation.sampling import Sampling
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.prompts.encoding import text_ids


@alone
def sample_texts(
    model: Model, n: int = 16, *, start: str = "", max_new_tokens: int = 255, temperature: float = 1.0
) -> list[str]:
    """Texts that the model itself writes, for ``mh.profile_heads`` and ``mh.behaviour.head_examples``.

    What heads do on a model's own text can differ from what they do on texts of others.

    Args:
        n: the number of texts.
        start: how each text begins. If it is empty, the model begins after its token for the beginning or, if it has
            none, for the end of a text. A chat model then often writes a chat.
        max_new_tokens: the largest number of tokens of a text.
        temperature: 1 draws tokens with the model's own probabilities.

    Raises:
        ValueError: if an argument is not valid, or ``start`` is empty and the tokenizer has no such token.

    >>> texts = mh.generation.sample_texts(model, 2, start="Once upon a time", max_new_tokens=20)
    >>> [text[:16] for text in texts]
    ['Once upon a time', 'Once upon a time']
    """
    seed = current().seed
    check_at_least(1, n=n)
    tokenizer = model.tokenizer
    ids = text_ids(start, tokenizer)[0]
    if not ids:
        known = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        ids = [token for token in known if token is not None][:1]
    if not ids:
        raise ValueError("start is empty, and the tokenizer has no token for the beginning or end of a text; give one")
    sampling = Sampling(max_new_tokens, temperature=temperature, seed=seed)
    written = generate(model, [ids] * n, sampling)
    return [f"{start}{text}" for text in written.texts]
