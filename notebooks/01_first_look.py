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
# A small chat model knows that the capital of France is Paris. Which of its 270 attention heads carries this fact to
# the token at which the model has to answer? We load the model, see what a head attends to, patch one fact, test the
# finding on new prompts, and read a map of what the heads do according to their weights.
#
# You should know what an attention head, the residual stream and a logit are, but you need not know this package. The
# notebook takes about half a minute on two cores that do nothing else, and longer on a busy or older machine. The first
# time, it also downloads the model (93 MB).

# %%
from dataclasses import dataclass, replace
from typing import ClassVar

import mechheads as mh

model = mh.load()


model

# %% [markdown]
# ## Run a prompt, keep every head
#
# `model.cache` runs prompts once and keeps what each head does. Heads are named by layer and head, both counted from 0:
# `"L23H4"` is head 4 of layer 23. For each head there is
#
# | | | shape |
# |---|---|---|
# | `run.pattern["L23H4"]` | what it attends to | [prompt, query, key] |
# | `run.z["L23H4"]` | the values it collects there, before W_O | [prompt, pos, d_head] |
# | `run.result["L23H4"]` | what it adds to the residual stream, z W_O | [prompt, pos, d_model] |

# %%
run = model.cache(["The capital of France is"])
probability, token = run.logits[0, -1].softmax(-1).max(-1)
answer = model.tokenizer.decode([int(token)])
print(f"after {run.tokens.strings[0]} comes {answer!r}, with probability {probability:.2f}")

# %% [markdown]
# ## What a head attends to
#
# In an attention pattern, each row is a query token and each column is a key token. A row shows how the attention of
# its token is divided among the keys, and sums to one. The model gives its answer at the last token. From there, L23H4
# attends to the country.

# %%
pattern = run.pattern["L23H4"]
on_country, country = pattern[0, -1, 3], run.tokens.strings[0][3]
print(f"from the last token, {on_country:.0%} of its attention is on {country!r}")
run.attention.plot(["L23H4", "L23H5", "L29H1"])

# %% [markdown]
# ## Patch one fact
#
# A pattern shows what a head attends to, not whether this matters. To find out, we intervene. We run a **clean** prompt
# ("France") and a **corrupted** prompt ("Italy"), which are equal token for token except for the country. Then we run
# the corrupted prompt again with *one* head's z taken from the clean run, and see how far the answer moves from " Rome"
# back to " Paris". The metric is the logit of the right capital minus the logit of the wrong one.
#
# Doing this for every head is a sweep. `mh.plan` says what it costs before you start.

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
effect.top(5, by="absolute")

# %%
effect.plot()

# %% [markdown]
# With `normalize=True`, 0 means that patching the head did nothing and 1 that it restored the whole difference between
# the two runs. One head of 270 restores most of it. Blue heads have the opposite effect.
#
# ## How sure are we?
#
# Look at the column `p_value`. Four pairs give four signs, and the smallest p that four signs can give is 2/16 = 0.125:
# even if a head helps every time, four pairs cannot prove it. `p_family` and `q_value`, which take into account that
# there are 270 heads, are no smaller. We also chose the best of these heads, so luck probably makes its score look
# better than it is. One remedy helps against both: take the few heads that stand out, and test *those* on fresh pairs.

# %%
candidates = effect.heads(5, by="absolute")
fresh = capital_pairs(
    "Austria/Sweden Greece/Norway Portugal/Ireland Hungary/Denmark "
    "Canada/Cuba Kenya/Chile Bulgaria/Scotland Philippines/Netherlands"
)
options = {"normalize": True}
confirmed = mh.activation_patch(model, fresh, heads=candidates, **options)
confirmed.top(5, by="absolute")

# %% [markdown]
# The score on fresh countries is indeed lower. But it is far from 0, its interval is too, and for every pair the
# effect has the same sign (p is 2/256, the smallest value that eight pairs can give). So has each of the other four.
# `p_family`, how often chance alone would make *any* of the five heads look as clear, is as small, and so is q.
#
# So the head is *enough* to move most of the answer. Is it also *needed*? Reverse the patch: run the clean prompt with
# this one head from the corrupted run. And at which token does it act? Patch the token of the country and the last
# token one at a time.

# %%
needed = mh.activation_patch(model, fresh, heads="L23H4", direction="noising", **options)
where = mh.activation_patch(model, fresh, heads="L23H4", positions=["country", "last"], **options)
print(f"without it, {needed['L23H4']['score']:.0%} of the difference is lost")
where["L23H4"].set_index("pos").round(3)

# %% [markdown]
# Both effects are about equally large: the head is needed, too. And it acts at the last token.
#
# ## Read the map
#
# Prompts show what a head does on those prompts. Its weights say what it would do with *any* token: multiply the vector
# of a country by W_V, W_O and the unembedding, and see whether the capital is among the ten largest logits. The
# relation score phi is the share of pairs for which it is (Elhelo & Geva 2025). A head may read a token as the bare
# embedding, after the first MLP, or as the model carries it to the head's layer. All three readings are tried, and
# `reading` says which gave the largest phi. A head gets the category of a relation if it hits more pairs than it does
# when the capitals are shuffled among the countries: by at least a tenth of the pairs, at a false discovery rate of 5%.
# To save time we take only every second adjective and every fifth name.

# %%
adjectives, names = (mh.Relation.load(name) for name in ("adjective_to_comparative", "name_copying"))
relations = [
    "country_to_capital",
    replace(adjectives, pairs=adjectives.pairs[::2]),
    replace(names, pairs=names.pairs[::5]),
    "english_to_spanish",
]
phi = mh.relation_scores(model, relations)
labels = mh.label_heads(phi)
table = labels.table().query("relation == 'country_to_capital'").set_index("head")
capitals = table.index[table["label"].str.contains("Knowledge")].tolist()
print(f"heads in each category: {labels.counts(once=True)}")
print(f"labelled for capitals:  {', '.join(capitals)}")
table[["phi", "reading", "null_phi", "q", "label"]].nlargest(5, "phi").round(3)

# %%
labels.plot()

# %% [markdown]
# The labels use the weights alone, and patching uses prompts alone. Yet the heads with the largest phi for capitals are
# among the heads that patching found strongest, and L23H4 is one of them. A label says that a head can do something,
# and phi says for which share of the words. Neither says that the head does it here: L23H2 has the label too, and
# patching it has almost no effect.
#
# No head has the colour of Translation: none was found among 61 French and 36 Spanish pairs. This model was trained
# mostly on English.
#
# ## What you may conclude, and what not
#
# - **You may say:** in prompts of this form, L23H4 carries most of what distinguishes one capital from another to the
#   last token. The effect has this size, with this interval, over these countries.
# - **Not:** "L23H4 stores the capitals." It moves something from the country's token. Earlier layers put it there, and
#   later layers read it.
# - **Not:** "Other heads do not matter." When one head is gone, others may do its work (self-repair), so a small effect
#   is weak evidence of no effect.
# - **Not:** "This is what L23H4 does." It has a second category here, and one template is one context. Try another
#   template before you believe the first.
# - **Not:** "Labelled, so used." A label is about weights. Whether the head attends to such words, and whether the
#   model needs it, are other questions.
#
# ## Exercises
#
# Fill in the answer and run the cell after it: it says whether you are right.
#
# ### 1. Attention elsewhere
#
# Which of the five `candidates` has less than 10% of its attention on the country, from the last token of *"The capital
# of France is"*? Name one.

# %% tags=["exercise"]
looks_elsewhere = None  # your turn: such as "L0H0"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    looks_elsewhere,
    lambda head: mh.HeadId.parse(head) in candidates and run.pattern[head][0, -1, 3] < 0.1,
    right="it matters for the answer without attending to the country, so it gets the country from another head.",
    hint="print run.pattern[head][0, -1, 3] for each head of candidates.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# looks_elsewhere = min(candidates, key=lambda head: run.pattern[head][0, -1, 3])
# ```
#
# Notebook 03 shows how one head can act through another.
# </details>
#
# ### 2. Labelled, but not used
#
# Name a head that is labelled for capitals and whose score in `effect` is below 0.05 in absolute value.

# %% tags=["exercise"]
not_used = None  # your turn: such as "L0H0"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    not_used,
    lambda head: str(mh.HeadId.parse(head)) in capitals and abs(effect[head]["score"]) < 0.05,
    right="its weights could do it, and in these prompts it does not.",
    hint="go through the list capitals and look up each head in effect.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# not_used = next(head for head in capitals if abs(effect[head]["score"]) < 0.05)
# ```
#
# What does this head attend to? `run.attention.plot([not_used])` shows it.
# </details>
#
# ### 3. Your own intervention
#
# An intervention is a small class: it gets one head's activation and returns another. The class below takes the
# attention pattern and changes nothing. Change it so that **the head cannot attend to the country**: move the attention
# on the country to the first token. `context.base.tokens.positions["country"]` holds the position of the country in
# each prompt. How much of the logit difference is lost, and for which head?


# %% tags=["exercise"]
@dataclass(frozen=True)
class Blindfold:
    site: ClassVar[str] = "pattern"

    def __call__(self, pattern, context):  # pattern [prompt, query, key]
        new = pattern.clone()
        # your turn: four lines are enough
        return new


# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
blind = mh.sweep(model, fresh.side("clean"), intervention=Blindfold(), metric=mh.logit_diff, heads=candidates)
mh.testing.check_answer(
    None if abs(blind.scores).max() < 1e-4 else blind,
    lambda scores: -6 < scores["L23H4"]["score"] < -4 and abs(scores["L29H1"]["score"]) < 0.5,
    right=f"L23H4 loses {-blind['L23H4']['score']:.1f} logits, and L29H1 next to nothing: it attends to other tokens.",
    hint="add the attention on the country to column 0 of each row, then set it to 0 in its own column.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# import torch
#
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
# With `metric=mh.patching.accuracy` you see that the model then names the right capital for fewer countries.
# </details>
