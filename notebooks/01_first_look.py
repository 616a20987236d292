# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first look at the heads of a language model
#
# A small chat model knows that the capital of France is Paris. Which of its 270 attention heads carries that fact to
# the place where it is needed? We load the model, look at where a head looks, patch one fact, check what we found on
# prompts we had not used before, and read a map of what the heads do by their weights alone.
#
# You should know what an attention head, the residual stream and a logit are; you need not know this package. It runs
# in about half a minute on a laptop without a GPU. The first time, it also fetches the model, 93 MB.

# %%
from dataclasses import dataclass
from typing import ClassVar

import torch

import mechheads as mh

model = mh.load()
model

# %% [markdown]
# ## Run a prompt, keep every head
#
# `model.cache` runs prompts once and keeps what each head does. Heads are named by layer and head, both counted from
# 0: `"L23H4"` is head 4 of layer 23. For each there is
#
# | | | shape |
# |---|---|---|
# | `run.pattern["L23H4"]` | where it looks | [prompt, query, key] |
# | `run.z["L23H4"]` | what it gathers there, before W_O | [prompt, pos, d_head] |
# | `run.result["L23H4"]` | what it adds to the residual stream, z W_O | [prompt, pos, d_model] |

# %%
run = model.cache(["The capital of France is"])
probability, token = run.logits[0, -1].softmax(-1).max(-1)
answer = model.tokenizer.decode([int(token)])
print(f"after {run.tokens.strings[0]} comes {answer!r}, with probability {probability:.2f}")

assert answer == " Paris"
assert abs(probability - 0.77) < 0.01

# %% [markdown]
# ## Where a head looks
#
# Each row of an attention pattern is a token that looks, each column a token that it looks at; a row sums to 1. From
# the last token, where the answer is due, L23H4 looks at the country.

# %%
pattern = run.pattern["L23H4"]
on_country, country = pattern[0, -1, 3], run.tokens.strings[0][3]
print(f"from the last token, {on_country:.0%} of its attention is on {country!r}")

assert torch.allclose(pattern.sum(-1), torch.ones(1, 5), atol=1e-5)
assert abs(on_country - 0.90) < 0.01
run.attention.plot(["L23H4", "L23H5", "L29H1"])

# %% [markdown]
# ## Patch one fact
#
# A pattern says where a head looks, not whether that matters. To find out, we act. We run a **clean** prompt ("France")
# and a **corrupted** one ("Italy"), which must agree token for token but for the country. Then we run the corrupted
# prompt again with *one* head's z taken from the clean run, and see how far the answer moves from " Rome" back to
# " Paris". The metric is the logit of the right capital less that of the wrong one.
#
# Doing that for every head is a sweep. Ask what it costs before you pay.

# %%
capital = dict(mh.Relation.load("country_to_capital").pairs)


def capital_pairs(countries: str) -> mh.PromptPairs:
    """Pairs such as "France/Italy": ask for the capital of France, corrupt with Italy."""
    rows = [tuple(pair.split("/")) for pair in countries.split()]
    answers = [(f" {capital[clean]}", f" {capital[corrupted]}") for clean, corrupted in rows]
    template = "The capital of {country} is"
    return mh.PromptPairs.from_templates(template, {"country": rows}, answer=answers)


pairs = capital_pairs("France/Italy Germany/Japan Spain/Russia England/China")
print(mh.plan(model, pairs, intervention=mh.Patch(), metric=mh.logit_diff, base="corrupted"))

# %%
effect = mh.activation_patch(model, pairs, normalize=True)
print(effect.top(5, by="absolute").round(3).drop(columns=["layer", "head"]).to_string())

assert effect.heads(1) == (mh.HeadId(23, 4),)
assert abs(effect["L23H4"]["score"] - 0.90) < 0.01
effect.plot()

# %% [markdown]
# With `normalize=True`, 0 means that patching the head did nothing and 1 that it restored the whole difference between
# the two runs. One head of 270 restores 90% of it. Blue heads work against it.
#
# ## How sure are we?
#
# Look at the columns `p_value` and `q_value`. Four pairs give four signs, and the least p that four signs can give is
# 2/16 = 0.125: even if a head helps every time, four pairs cannot prove it. And we chose the best of 270, so its score
# is likely to be flattered by luck. The remedy for both is plain: take the few heads that stand out, and test *those*
# on fresh pairs.

# %%
candidates = effect.heads(5, by="absolute")
fresh = capital_pairs(
    "Austria/Sweden Greece/Norway Portugal/Ireland Hungary/Denmark "
    "Canada/Cuba Kenya/Chile Bulgaria/Scotland Philippines/Netherlands"
)
options = {"normalize": True, "progress": False}
confirmed = mh.activation_patch(model, fresh, heads=candidates, **options)
print(confirmed.top(5, by="absolute").round(4).drop(columns=["layer", "head"]).to_string())

found = confirmed["L23H4"]
assert found["score"] < effect["L23H4"]["score"]
assert abs(found["score"] - 0.737) < 0.005
assert abs(found["ci_low"] - 0.647) < 0.01
assert abs(found["ci_high"] - 0.825) < 0.01
assert found["p_value"] == found["q_value"] == 2 / 2**8

# %% [markdown]
# 90% was indeed flattered; on fresh countries it is 74%, with an interval from 65% to 83%. That is still far from 0,
# for every pair the effect has the same sign (p = 2/256), and with five heads in the test q stays small too.
#
# So the head is *enough* to move most of the answer. Is it also *needed*? Turn the patch round: run the clean prompt,
# with this one head from the corrupted run. And *where* does it act? Patch the token of the country and the last token
# one at a time.

# %%
needed = mh.activation_patch(model, fresh, heads="L23H4", direction="noising", **options)
where = mh.activation_patch(model, fresh, heads="L23H4", positions=["country", "last"], **options)
print(f"taken away, it costs {needed['L23H4']['score']:.0%} of the difference")
print(where["L23H4"].set_index("pos").round(3).to_string())

at_country, at_last = where["L23H4"]["score"]
assert abs(needed["L23H4"]["score"] - 0.737) < 0.005
assert abs(at_country) < 0.005
assert abs(at_last - 0.735) < 0.005

# %% [markdown]
# ## Read the map
#
# Prompts show a head at work on those prompts. Its weights say what it would do with *any* token: push a country
# through W_V, W_O and the unembedding, and see whether the capital is among the ten largest logits. The share of pairs
# for which it is, is the relation score phi (Elhelo & Geva 2024). A head may read a token as the bare embedding, after
# the first MLP, or as the model carries it to the head's layer; each is tried, and `reading` says which gave the most.
# A head gets a relation's category if it hits more pairs than when the capitals are shuffled among the countries, by a
# tenth of the pairs or more, at a false discovery rate of 5%.

# %%
relations = [
    "country_to_capital",
    "adjective_to_comparative",
    "name_copying",
    "english_to_spanish",
]
phi = mh.relation_scores(model, relations, progress=False)
labels = mh.label_heads(phi)
print(labels.counts())
table = labels.table().query("relation == 'country_to_capital'").set_index("head")
print(table[["phi", "reading", "null_phi", "q", "label"]].nlargest(5, "phi").round(3).to_string())

capitals = phi.select(relation="country_to_capital")
assert set(capitals.heads(3)) == {mh.HeadId(29, 2), mh.HeadId(23, 4), mh.HeadId(29, 1)}
assert abs(capitals["L23H4"]["score"] - 31 / 38) < 0.03
assert labels.of("L23H4") == ("Knowledge", "Algorithmic")
assert "Knowledge" in labels.of("L23H2") and abs(effect["L23H2"]["score"]) < 0.05
assert set(capitals.heads(3)) <= set(candidates)
counts = labels.counts()
assert min(counts["Knowledge"], counts["Linguistic"], counts["Algorithmic"]) > 0
spanish = phi.select(relation="english_to_spanish")
assert spanish.scores.max() < 0.1
assert counts["Translation"] == 0
labels.plot()

# %% [markdown]
# Weights and patching never saw each other's numbers. Of 270 heads seven are labelled for capitals, and the three with
# the largest phi are among the five that patching finds strongest, L23H4 first. A label says that something is there,
# and phi how much. It does not say that the head does it here: L23H2 has the label, too, and patching finds next to
# nothing.
#
# No head has the colour of Translation. This model was trained mostly on English, and of the Spanish words that are not
# English words as well its best head hits two of 36.
#
# ## What you may conclude, and what not
#
# - **You may say:** in prompts of this form, L23H4 carries most of what tells one capital from another to the last
#   token; the effect has this size, with this interval, over these countries.
# - **Not:** "L23H4 stores the capitals." It moves something from the country's token; layers before it put that there,
#   and layers after it read it.
# - **Not:** "Other heads do not matter." When one head is gone, others may step in (self-repair), so a small effect is
#   weak evidence of no effect.
# - **Not:** "This is what L23H4 does." It has a second category here, and one template is one context. Try another
#   template before you believe the first.
# - **Not:** "Labelled, so used." A label is about weights: whether the head looks at such words, and whether the model
#   needs it, are other questions.
#
# ## Exercise: your own intervention
#
# An intervention is a small class: it gets one head's activation and gives back another. Below is one for the attention
# pattern that changes nothing, so its effect is exactly 0. Change it so that **the head may not look at the country**:
# move the attention that goes there to the first token. How much of the logit difference is lost, and for which head?
#
# `context.base.tokens.positions["country"]` holds the position of the country in each prompt.


# %%
@dataclass(frozen=True)
class Blindfold:
    site: ClassVar[str] = "pattern"

    def __call__(self, pattern, context):  # pattern [prompt, query, key]
        new = pattern.clone()
        # your turn: four lines are enough
        return new


blind = mh.sweep(
    model,
    fresh.side("clean"),
    intervention=Blindfold(),
    metric=mh.logit_diff,
    heads=candidates,
    progress=False,
)
print(blind.top(5, by="absolute").round(3).drop(columns=["layer", "head"]).to_string())

assert abs(blind.scores).max() < 1e-4  # nothing changes yet: delete this line once it does

# %% [markdown]
# <details><summary>One solution</summary>
#
# ```python
# @dataclass(frozen=True)
# class Blindfold:
#     site: ClassVar[str] = "pattern"
#
#     def __call__(self, pattern, context):
#         row = torch.arange(len(pattern))
#         country = context.base.tokens.positions["country"]
#         new = pattern.clone()
#         new[:, :, 0] += pattern[row, :, country]
#         new[row, :, country] = 0
#         return new
# ```
#
# L23H4 loses 5.0 of the 9.9 logits by which the right capital leads, and the model then names the right capital for 3
# of 8 countries in place of all 8 (`metric=mh.accuracy`). L29H1 loses next to nothing: it does not look at the country.
# </details>
