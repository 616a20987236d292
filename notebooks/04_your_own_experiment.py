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
# Zeroing heads, averaging them and patching them are other people's experiments. Yours is a few lines: **what the
# head's activation becomes**, and **what you measure**. The engine does the rest, at the same speed as its own.
#
# In this notebook we write an intervention, a metric and a receiver, of about ten lines each; have them checked for the
# traps that one falls into; and keep a long run in a file, so that it survives being interrupted. It takes less than a
# minute without a GPU. You should have seen the notebook on activation patching.

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
from mechheads.store import Ledger
from mechheads.testing import CheckFailed, check_intervention, check_metric

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
# What a head says, its `z`, has a direction and a length. Is it *what* it says that matters for the capital, or how
# *loudly*? Patching moves both at once. So let us move the direction alone.
#
# An intervention is a frozen dataclass with a `__call__`. It gets the activation of one head for all prompts, and a
# `context`: the `head`, the cached run that is changed (`base`), the other one (`source`), and the `mask` that tells
# real tokens from padding. It gives back what the activation shall become.
#
# - Its fields are its settings. Frozen, so that it can stand in a result's provenance and in a file of finished work.
# - `needs` names what it reads from the cached runs; left out, everything is kept for it, which costs memory.
# - `site = "q"` (or `"k"`, `"v"`, `"pattern"`) would give it that activation in place of z.


# %%
@dataclass(frozen=True)
class SayInItsWords:
    """z keeps its length and takes the direction that it has in the other run."""

    needs: ClassVar[tuple[str, ...]] = ("z",)

    def __call__(self, z, context):  # [prompt, pos, d_head]
        other = context.source.z[context.head]
        direction = other / other.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return z.norm(dim=-1, keepdim=True) * direction


print(check_intervention(SayInItsWords()))

# %% [markdown]
# `check_intervention` tries out what the engine takes for granted: that it gives the same numbers each time, leaves the
# cached runs alone, reads no more than it said, does not mind padding; and last, that the sweep agrees with plain full
# runs of a tiny model. It takes a moment.
#
# You need not guess what it would say to a mistake. Here is one that looks innocent: say everywhere the mean of what
# you say in this prompt.


# %%
def say_the_mean(z, context):
    return z.mean(1, keepdim=True).expand_as(z)


try:
    check_intervention(say_the_mean)
except CheckFailed as error:
    message = str(error)
print(message)

assert "fails 1 of" in message and "padding" in message

# %% [markdown]
# Prompts of different lengths are padded, and the mean runs over the padding too. With prompts of one length it would
# have gone unnoticed until the day it mattered. The message says what is wrong and where to look, `context.mask`:


# %%
def say_the_mean(z, context):
    real = context.mask[..., None]
    return ((z * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)).expand_as(z)


report = check_intervention(say_the_mean)
print(report.notes[0])

assert report.passed

# %% [markdown]
# It passes, with a note that is no fault: a token now says something about later tokens, which the model never does.
# That is for you to judge.
#
# Back to direction and length. Look at the cost, and run it on the heads of layers 20 to 29:

# %%
experiment = {
    "intervention": SayInItsWords(),
    "metric": mh.logit_diff,
    "base": "corrupted",
    "heads": late,
}
print(mh.plan(model, pairs, **experiment))

# %%
patched = mh.activation_patch(model, pairs, heads=late, normalize=True, progress=False)
words = mh.sweep(model, pairs, **experiment, normalize=True, progress=False)
best = words.heads(5, by="absolute")
table = pd.DataFrame(index=[str(head) for head in best])
table["all of z"] = [patched[head]["score"] for head in best]
table["direction alone"] = [words[head]["score"] for head in best]
print(table.round(2))

assert words.heads(1) == (mh.HeadId(23, 4),)
assert words["L23H4"]["score"] > 0.9 * patched["L23H4"]["score"]

# %% [markdown]
# It is the words, not the voice: the direction alone restores as much as the whole z does. (0 would be nothing, 1 the
# whole difference between the runs.) What the length alone does is the exercise at the end. A result of your own is a
# result like any other: it has intervals, it can be saved and compared, and it can be drawn.

# %%
words.plot().update_yaxes(range=[29.5, 19.5]).update_layout(height=450)

# %% [markdown]
# ## A metric
#
# The logit difference compares two capitals. But the model chooses among 49,152 tokens. How far is the right capital
# ahead of the *best of all others*? Below 0 it is no longer the model's choice.
#
# A metric is a function of the logits at the positions that it reads, [prompt, position, d_vocab], and of a context
# with the answers. It gives one number a prompt. `@mh.metric` says its unit, and which position it reads if that is not
# the last one.


# %%
@mh.metric(unit="logits")
def lead(logits, context):
    last = logits[:, -1]
    answer = context.answer[:, None]
    others = last.scatter(1, answer, -torch.inf)
    return last.gather(1, answer)[:, 0] - others.max(-1).values


print(check_metric(lead))

# %% [markdown]
# And one that fails. Logits are hard to read, someone says, so let us divide by the largest lead:


# %%
@mh.metric(unit="share of the largest lead")
def relative_lead(logits, context):
    leads = lead(logits, context)
    return leads / leads.abs().max()


try:
    check_metric(relative_lead)
except CheckFailed as error:
    message = str(error)
print(message)

assert "fails 1 of" in message and "batch" in message

# %% [markdown]
# What France scores must not depend on whether England is in the list. Here it would even depend on how many prompts
# fit into memory at once. We stay with logits.

# %%
columns = {}
for metric in (lead, mh.logit_diff):
    zeroed = mh.ablate(model, pairs, heads="L23H4", metric=metric, progress=False)
    before = zeroed.dataset["base_metric"].values
    columns[metric.__name__] = before
    change = zeroed.values.sel(layer=23, head=4).values
    columns[f"{metric.__name__}, L23H4 zeroed"] = before + change
table = pd.DataFrame(columns, index=pairs.clean)
assert (table["lead"] > 1).all() and (table["lead, L23H4 zeroed"] < 0).sum() in (1, 2)
assert (table["logit_diff, L23H4 zeroed"] > 1).all()
table.round(1)

# %% [markdown]
# With L23H4 zeroed the right capital is still well ahead of the *wrong* one, everywhere. Whether it keeps the first
# place is another question: it only just does, and for Portugal it does not.
#
# ## A receiver
#
# Path patching asks what one head tells a listener. A listener of your own is a list of names: the q, k or v of heads,
# and inputs of MLPs, all replaced together. What does L23H4 tell the last layer: its heads, about where to look; its
# heads, about what to hand on; its MLP? We measure with both metrics.

# %%
last, heads = model.n_layers - 1, range(model.n_heads)
receivers = {
    "where its heads look": [f"L{last}H{head}.{site}" for head in heads for site in "qk"],
    "what its heads hand on": [f"L{last}H{head}.v" for head in heads],
    "its MLP": [f"L{last}.mlp"],
}
options = {"senders": "L23H4", "progress": False}
told = pd.DataFrame(index=list(receivers), columns=["lead", "logit_diff"], dtype=float)
for metric in (lead, mh.logit_diff):
    for name, group in receivers.items():
        paths = mh.path_patch(model, pairs, receivers=group, metric=metric, **options)
        told.loc[name, metric.__name__] = paths["L23H4"]["score"]
assert abs(told.loc["where its heads look"]).max() < 0.5
assert told.loc["its MLP", "logit_diff"] < -1 < 0.9 < told.loc["its MLP", "lead"]
told.round(2)

# %% [markdown]
# (The base is the clean run, so below 0 means that the path helps.) Look at the last row. What the MLP makes of L23H4's
# words favours the right capital over the wrong one, and yet costs it a logit against its best rival. With one metric
# you would have told half of the story.
#
# ## A run that survives
#
# A sweep of a large model takes hours, and something always happens. With `store=` each unit is written to a file as
# soon as it is finished, and the same call goes on where the last one stopped, be it after Ctrl-C, a crash or a power
# cut.
#
# To show it, something must happen. The function below stands in for your finger on Ctrl-C, just before the second
# time that finished work would be written.

# %%
store = Path(tempfile.mkdtemp()) / "capitals.ledger"
experiment = experiment | {"metric": lead, "heads": None, "progress": False}  # None: all 270
commit, written = Ledger.commit, []


def until_ctrl_c(ledger, units):
    if written:
        raise KeyboardInterrupt
    commit(ledger, units)
    written.append(len(units))


with patch.object(Ledger, "commit", until_ctrl_c):
    partial = mh.sweep(model, pairs, **experiment, store=store)

print(partial)
print("in the file:", Ledger.list(store)[0]["units"], "of 270 heads")

assert 0 < Ledger.list(store)[0]["units"] == sum(written) < 270
assert len(partial.missing) == 270 - sum(written)

# %% [markdown]
# You get back what there is: heads that were not reached are NaN, and `partial.missing` names them. Now the same call
# again:

# %%
resumed = mh.sweep(model, pairs, **experiment, store=store)
undisturbed = mh.sweep(model, pairs, **experiment)
print("in the file:", Ledger.list(store)[0]["units"], "of 270 heads")

assert Ledger.list(store)[0]["units"] == 270
np.testing.assert_array_equal(resumed.values, undisturbed.values)  # the same bits

# %% [markdown]
# The same numbers, to the last bit, as a run that nobody disturbed. And never stale ones: a finished unit is found by a
# fingerprint of the model and its weights, the prompts, the intervention and its settings, the *code* of your metric,
# and more. Change any of these and it is another experiment, kept beside the first in the same file:

# %%
mh.sweep(model, pairs, **experiment | {"metric": mh.log_prob, "heads": ["L23H4"]}, store=store)
for kept in Ledger.list(store):
    print(f"{kept['about']['intervention']}, {kept['about']['metric']}: {kept['units']} units")

assert [kept["units"] for kept in Ledger.list(store)] == [270, 1]

# %% [markdown]
# That is why interventions are frozen dataclasses. What cannot be told apart from its changed self cannot be stored,
# and says so:


# %%
def shrink(z, context):
    return z / model.d_head**0.5


try:
    mh.sweep(model, pairs, intervention=shrink, heads="L23H4", progress=False, store=store)
except ValueError as error:
    message = str(error)
print(message)

assert "model in shrink" in message

# %% [markdown]
# A whole model is no setting. Give the number: a frozen dataclass with a field `d_head: int`.
#
# ## Before you believe it
#
# - **Does the null do nothing?** Sweep an intervention that returns its input: every score must be 0.
# - **Does the known come out?** Try it where you know the answer, as L23H4 here.
# - **How many prompts, how many heads?** Read the intervals and q values as in the notebook on activation patching. A
#   new metric that is a distance, and so never below 0, says `@mh.metric(null=None)`: p would mean nothing.
# - **Is it fair to the model?** A z that no run ever produces may break it in ways that tell nothing about the head. A
#   mean, or another prompt's z, is kinder than zero.
#
# ## Exercise: how loudly?
#
# Write the other half: `InItsVoice` keeps the direction of z and takes the *length* that it has in the other run. Check
# it, sweep it, and compare with the direction alone.


# %%
@dataclass(frozen=True)
class InItsVoice:
    needs: ClassVar[tuple[str, ...]] = ("z",)

    def __call__(self, z, context):
        return z  # your turn


voice = mh.sweep(
    model,
    pairs,
    intervention=InItsVoice(),
    metric=mh.logit_diff,
    base="corrupted",
    heads=late,
    progress=False,
)
assert abs(voice.scores).max() < 1e-4  # nothing changes yet: delete this line once it does

# %% [markdown]
# <details><summary>One solution</summary>
#
# ```python
# @dataclass(frozen=True)
# class InItsVoice:
#     needs: ClassVar[tuple[str, ...]] = ("z",)
#
#     def __call__(self, z, context):
#         other = context.source.z[context.head]
#         direction = z / z.norm(dim=-1, keepdim=True).clamp_min(1e-6)
#         return other.norm(dim=-1, keepdim=True) * direction
# ```
#
# With `normalize=True`, L23H4 restores 0.01 of the difference, against 0.85 by its direction. It is as loud for Italy
# as for France.
# </details>
