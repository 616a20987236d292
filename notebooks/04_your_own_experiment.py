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
# # Your own experiment
#
# Zero ablation, mean ablation and patching come with the package. An experiment of your own takes a few lines, which
# say **what the head's activation becomes** and **what you measure**. The engine does the rest, as fast as for the
# experiments of the package.
#
# In this notebook we write an intervention, a metric and a group of receivers, each in about ten lines. We check them
# for common mistakes, and we keep a long run in a file so that it survives an interruption. It takes about a minute on
# two cores that do nothing else, and longer on a busy or older machine. You should know activation patching (notebook
# 02).

# %%
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

import mechheads as mh
from mechheads.scale import Ledger
from mechheads.testing import CheckFailed, check

model = mh.load()
capital = dict(mh.Relation.load("country_to_capital").pairs)
countries = (
    "France/Italy Germany/Japan Spain/Russia England/China "
    "Austria/Sweden Greece/Norway Portugal/Ireland Hungary/Denmark"
)
rows = [tuple(pair.split("/")) for pair in countries.split()]
pairs = mh.PromptPairs.from_templates(
    "The capital of {country} is",
    {"country": rows},
    answer=[(f" {capital[clean]}", f" {capital[corrupted]}") for clean, corrupted in rows],
)
late = [(layer, head) for layer in range(20, 30) for head in range(model.n_heads)]

# %% [markdown]
# ## An intervention
#
# The output of a head, its `z`, is a vector with a direction and a length. Which of the two matters for the capital?
# Patching changes both at once. So let us change the direction alone.
#
# An intervention is a frozen dataclass with a `__call__`. It gets the activation of one head for all prompts and a
# `context`, which holds the `head`, the cached run that is changed (`base`), the other run (`source`), and the `mask`
# that separates real tokens from padding. It returns the new activation.
#
# - Its fields are its settings. It is frozen so that a result and a file of finished work can name it.
# - `needs` lists what it reads from the cached runs. Without it everything is kept, which costs memory.
# - `site = "q"` (or `"k"`, `"v"`, `"pattern"`) gives it that activation instead of z.


# %%
@dataclass(frozen=True)
class OtherDirection:
    """z keeps its length and takes the direction that it has in the other run."""

    needs: ClassVar[tuple[str, ...]] = ("z",)

    def __call__(self, z, context):  # [prompt, pos, d_head]
        other = context.source.z[context.head]
        direction = other / other.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return z.norm(dim=-1, keepdim=True) * direction


print(check(OtherDirection()))

# %% [markdown]
# `check` tests what the engine relies on. An intervention must give the same numbers each time, must read only what it
# listed in `needs`, and must ignore padding. Finally, the sweep must agree with plain full runs of a tiny model. The
# check takes a moment.
#
# What does it report if there is a mistake? Here is one that looks harmless: replace the head's output at every token
# with its mean over the prompt.


# %%
def mean_over_prompt(z, context):
    return z.mean(1, keepdim=True).expand_as(z)


try:
    check(mean_over_prompt)
except CheckFailed as error:
    of_padding = str(error)
print(of_padding)

# %% [markdown]
# Prompts of different lengths are padded, and this mean includes the padding. With prompts of equal length you would
# not notice the mistake. The message says what is wrong and where to look, `context.mask`:


# %%
def mean_over_prompt(z, context):
    real = context.mask[..., None]
    return ((z * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)).expand_as(z)


report = check(mean_over_prompt)
print(report.found[2])

# %% [markdown]
# It passes, and cannot be used in text that is written token by token: the new output at a token now depends on later
# tokens, which never happens in the model. You have to decide whether that matters.
#
# Back to direction and length. Look at the cost, then run the intervention on the heads of layers 20 to 29:

# %%
experiment = {
    "intervention": OtherDirection(),
    "metric": mh.logit_diff,
    "base": "corrupted",
    "heads": late,
}
print(mh.plan(model, pairs, **experiment))

# %%
patched = mh.activation_patch(model, pairs, heads=late, normalize=True)
directions = mh.sweep(model, pairs, **experiment, normalize=True)
best = directions.heads(5, by="absolute")
table = pd.DataFrame(index=[str(head) for head in best])
table["all of z"] = [patched[head]["score"] for head in best]
table["direction alone"] = [directions[head]["score"] for head in best]
table.round(2)

# %% [markdown]
# The direction matters: alone it restores about as much as the whole z. (0 would be nothing, and 1 the whole difference
# between the runs.) What the length alone does is exercise 1. The result of your own experiment is like any other: it
# has intervals, and you can save it, compare it and draw it.

# %%
directions.plot().update_xaxes(range=[19.5, 29.5])

# %% [markdown]
# ## A metric
#
# The logit difference compares two capitals. But the model chooses among 49,152 tokens. How far is the right capital
# ahead of the *best of all others*? If this is below 0, the right capital is not the model's first choice.
#
# A metric is a function of the logits at the positions that it reads, [prompt, position, d_vocab], and of a context
# that holds the answers. It returns one number for each prompt. `@mh.metric` declares its unit, and the position that
# it reads if this is not the last one.


# %%
@mh.metric(unit="logits")
def lead(logits, context):
    last = logits[:, -1]
    answer = context.answer[:, None]
    others = last.scatter(1, answer, -torch.inf)
    return last.gather(1, answer)[:, 0] - others.max(-1).values


print(check(lead))

# %% [markdown]
# Here is a metric that fails the check. Logits are hard to read, so let us divide by the largest lead:


# %%
@mh.metric(unit="share of the largest lead")
def relative_lead(logits, context):
    leads = lead(logits, context)
    return leads / leads.abs().max()


try:
    check(relative_lead)
except CheckFailed as error:
    of_the_batch = str(error)
print(of_the_batch)

# %% [markdown]
# The score for France must not depend on whether England is in the list. Here it would even depend on how many prompts
# fit into memory at once. So we keep the logits.

# %%
columns = {}
for metric in (lead, mh.logit_diff):
    zeroed = mh.ablate(model, pairs, heads="L23H4", metric=metric)
    before = zeroed.dataset["base_metric"].values
    columns[metric.__name__] = before
    change = zeroed.values.sel(layer=23, head=4).values
    columns[f"{metric.__name__}, L23H4 zeroed"] = before + change
table = pd.DataFrame(columns, index=pairs.clean)
table.round(1)

# %% [markdown]
# With L23H4 zeroed, the right capital is still ahead of the *wrong* one everywhere. Whether it remains the first choice
# is another question: for most countries it does, by a small lead, and not for all.
#
# ## Receivers
#
# Path patching measures what one head sends to a receiver. You can make a receiver of your own from a list of names:
# the q, k or v of heads, and the inputs of MLPs. All of them are replaced together. What does L23H4 send to the last
# layer? We separate the q and k of its heads (where they look), their v (what they copy), and the MLP, and measure with
# both metrics.

# %%
last, heads = model.n_layers - 1, range(model.n_heads)
receivers = {
    "where its heads look": [f"L{last}H{head}.{site}" for head in heads for site in "qk"],
    "what its heads copy": [f"L{last}H{head}.v" for head in heads],
    "its MLP": [f"L{last}.mlp"],
}
options = {"senders": "L23H4"}
to_last_layer = pd.DataFrame(index=list(receivers), columns=["lead", "logit_diff"], dtype=float)
for metric in (lead, mh.logit_diff):
    for name, group in receivers.items():
        paths = mh.path_patch(model, pairs, receivers=group, metric=metric, **options)
        to_last_layer.loc[name, metric.__name__] = paths["L23H4"]["score"]
to_last_layer.round(2)

# %% [markdown]
# (The base is the clean run, so a score below 0 means that the path helps.) Look at the last row. The reaction of the
# MLP raises the right capital relative to the wrong one, but lowers it relative to the best of all other tokens. One
# metric alone would show half of this.
#
# ## A run that survives an interruption
#
# A sweep of a large model takes hours; ours, of the same 90 heads, takes seconds. With `store=`, units are written to
# a file as soon as their batch is finished. The same call then continues where the last one stopped, after Ctrl-C, a
# crash or a power cut.
#
# To show this, we need an interruption. The function below imitates Ctrl-C, just before finished work is written for
# the second time.

# %%
store = Path(tempfile.mkdtemp()) / "capitals.ledger"
experiment = experiment | {"metric": lead}
commit, written = Ledger.commit, []


def until_ctrl_c(ledger, units):
    if written:
        raise KeyboardInterrupt
    kept = commit(ledger, units)
    written.append(len(units))
    return kept


with patch.object(Ledger, "commit", until_ctrl_c):
    partial = mh.sweep(model, pairs, **experiment, store=store)

print(partial)
interrupted_at = Ledger.list(store)[0]["units"]
print("in the file:", interrupted_at, "of", len(late), "heads")

# %% [markdown]
# You get what was finished. `partial.missing` lists the heads still to do; they are NaN. Now the same call again:

# %%
resumed = mh.sweep(model, pairs, **experiment, store=store)
undisturbed = mh.sweep(model, pairs, **experiment)
print("in the file:", Ledger.list(store)[0]["units"], "of", len(late), "heads")
print("equal to a run without interruption:", np.array_equal(resumed.values, undisturbed.values, equal_nan=True))

# %% [markdown]
# The numbers are equal to the last bit. They are also not out of date: finished units are looked up by a key of the
# model and its files, the prompts, the intervention and its settings, the *source* of your metric, and more. If you
# change any of these, it is another experiment, and the same file keeps both. What no key can hold, such as a weight
# that you change, is noticed too: two of the stored units run again, and other numbers are an error.

# %%
mh.sweep(model, pairs, **experiment | {"metric": mh.log_prob, "heads": ["L23H4"]}, store=store)
for kept in Ledger.list(store):
    print(f"{kept['metadata']['intervention']}, {kept['metadata']['metric']}: {kept['units']} units")

# %% [markdown]
# This is why interventions are frozen dataclasses. An intervention whose settings cannot be compared cannot be stored,
# and the error says so:


# %%
def shrinking(model):
    def shrink(z, context):
        return z / model.d_head**0.5

    return shrink


shrink = shrinking(model)
try:
    mh.sweep(model, pairs, intervention=shrink, heads="L23H4", store=store)
except ValueError as error:
    cannot_be_stored = str(error)
print(cannot_be_stored)

# %% [markdown]
# A whole model cannot be a setting. Exercise 3 fixes this.
#
# ## Before you believe a result
#
# - **Does the null do nothing?** Sweep an intervention that returns its input: every score must be 0.
# - **Do you find what is known?** Try it where you know the answer, such as L23H4 here.
# - **Are there enough prompts, and how many heads did you test?** Read the intervals and `p_family` (notebook 02). If a
#   new metric is a distance, and so never below 0, declare `@mh.metric(null=None)`: a p value would mean nothing.
# - **Is it fair to the model?** A z that never occurs in a real run may break the model in ways that say nothing about
#   the head. A mean, or the z of another prompt, is milder than zero.
#
# ## Exercises
#
# Fill in the answer and run the cell after it: it says whether you are right.
#
# ### 1. The length alone
#
# Write the counterpart: `OtherLength` keeps the direction of z and takes the *length* that it has in the other run.


# %% tags=["exercise"]
@dataclass(frozen=True)
class OtherLength:
    needs: ClassVar[tuple[str, ...]] = ("z",)

    def __call__(self, z, context):
        return z  # your turn


# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
changed = experiment | {"intervention": OtherLength(), "metric": mh.logit_diff, "heads": ["L23H4", "L23H5"]}
lengths = mh.sweep(model, pairs, **changed, normalize=True)
mh.testing.check_answer(
    None if abs(lengths.scores).max() < 1e-6 else OtherLength(),
    lambda intervention: check(intervention).found and abs(lengths["L23H4"]["score"]) < 0.1,
    right="the length alone does almost nothing: it is about the same for Italy as for France.",
    hint="divide z by its own norm, and multiply by the norm of context.source.z[context.head].",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# @dataclass(frozen=True)
# class OtherLength:
#     needs: ClassVar[tuple[str, ...]] = ("z",)
#
#     def __call__(self, z, context):
#         other = context.source.z[context.head]
#         direction = z / z.norm(dim=-1, keepdim=True).clamp_min(1e-6)
#         return other.norm(dim=-1, keepdim=True) * direction
# ```
#
# Compare it with `directions`, which changes the direction alone.
# </details>
#
# ### 2. A metric: the rank
#
# Write a metric `rank` that counts how many tokens have a larger logit than the right answer: 0 if the answer is the
# first choice. Let it return a float for each prompt.

# %% tags=["exercise"]
rank = None  # your turn: a function of logits and context, with @mh.metric(unit="tokens")

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
corrupted = model.cache(pairs.corrupted).logits[:, -1]
right = torch.tensor(model.tokenizer(pairs.answer).input_ids)
true_rank = (corrupted > corrupted.gather(1, right)).sum(1)
mh.testing.check_answer(
    rank,
    lambda metric: np.array_equal(
        mh.activation_patch(model, pairs, heads="L23H4", metric=metric).dataset["base_metric"],
        true_rank,
    ),
    right="in the corrupted run the right capital has a low rank, and patching L23H4 brings it up.",
    hint="compare logits[:, -1] with the logit of context.answer, and sum over the vocabulary.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# @mh.metric(unit="tokens")
# def rank(logits, context):
#     last = logits[:, -1]
#     return (last > last.gather(1, context.answer[:, None])).sum(1).float()
# ```
#
# A rank has no gradient, so `mh.patching.attribution_patch` refuses it. It is easy to explain, and coarse.
# </details>
#
# ### 3. An intervention that can be stored
#
# Turn the function `shrink` into a frozen dataclass with a field `d_head: int`, so that its results can be stored.

# %% tags=["exercise"]
storable = None  # your turn: an instance, such as Shrink(model.d_head)

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
one_head = {"heads": "L23H4", "metric": mh.logit_diff}
mh.testing.check_answer(
    storable,
    lambda intervention: np.allclose(
        mh.sweep(model, pairs, intervention=intervention, **one_head, store=store)["L23H4"]["score"],
        mh.sweep(model, pairs, intervention=shrink, **one_head)["L23H4"]["score"],
        atol=1e-4,
    ),
    right="it does the same as shrink, and its settings are part of the key.",
    hint="use @dataclass(frozen=True), a field d_head: int, and self.d_head in __call__.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# @dataclass(frozen=True)
# class Shrink:
#     d_head: int
#
#     def __call__(self, z, context):
#         return z / self.d_head**0.5
#
# storable = Shrink(model.d_head)
# ```
#
# `Shrink(64)` and `Shrink(32)` are two experiments, and both can be in one file.
# </details>
