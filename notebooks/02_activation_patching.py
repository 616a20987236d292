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
# # Activation patching from first principles
#
# Take two prompts that differ in one word. Run the model on one of them, but give *one* of its heads what that head
# said in the other run. If the answer moves, what the head says matters for that word. That is activation patching.
#
# We do it by hand once, with a dozen lines of hooks. Then the package does the same for all 270 heads, and we spend the
# rest of the time on what is harder than the code: which way round to patch, what to patch, and the three mistakes that
# everybody makes. It takes about a minute without a GPU. You should know what a head, the residual stream and a logit
# are.

# %%
import pandas as pd
import torch

import mechheads as mh

model = mh.load()
capital = dict(mh.Relation.load("country_to_capital").pairs)


def capital_pairs(countries: str) -> mh.PromptPairs:
    """Pairs such as "France/Italy": ask for the capital of France, corrupt with Italy."""
    rows = [tuple(pair.split("/")) for pair in countries.split()]
    answers = [(f" {capital[clean]}", f" {capital[corrupted]}") for clean, corrupted in rows]
    template = "The capital of {country} is"
    return mh.PromptPairs.from_templates(template, {"country": rows}, answer=answers)


pairs = capital_pairs(
    "France/Italy Germany/Japan Spain/Russia England/China "
    "Austria/Sweden Greece/Norway Portugal/Ireland Hungary/Denmark"
)
print(pairs.clean[0], "->", pairs.answer[0])
print(pairs.corrupted[0], "->", pairs.wrong[0])

# %% [markdown]
# ## One head, by hand
#
# Three runs: the **clean** one, of which we keep the head's output `z`; the **corrupted** one, as it is; and the
# corrupted one again with this `z` put in place of its own. A hook is a function that TransformerLens calls when an
# activation passes; what it returns takes the activation's place.
#
# What we measure is the **logit difference**: the logit of the right capital (`" Paris"`) less that of the wrong one
# (`" Rome"`). It is negative in the corrupted run, and the question is how far one head moves it up.

# %%
clean = torch.tensor(model.tokenizer(pairs.clean).input_ids)
corrupted = torch.tensor(model.tokenizer(pairs.corrupted).input_ids)
right = torch.tensor(model.tokenizer(pairs.answer).input_ids)[:, 0]
wrong = torch.tensor(model.tokenizer(pairs.wrong).input_ids)[:, 0]


def logit_difference(logits):  # [prompt, pos, d_vocab]
    row = torch.arange(len(logits))
    return logits[row, -1, right] - logits[row, -1, wrong]


@torch.no_grad()
def patch_by_hand(layer, head):
    kept = {}

    def keep(z, hook):  # [prompt, pos, head, d_head]
        kept["z"] = z.clone()

    def put(z, hook):
        z = z.clone()
        z[:, :, head] = kept["z"][:, :, head]
        return z

    at = f"blocks.{layer}.attn.hook_z"
    model.model.run_with_hooks(clean, fwd_hooks=[(at, keep)])
    unpatched = model.model.run_with_hooks(corrupted, fwd_hooks=[])
    patched = model.model.run_with_hooks(corrupted, fwd_hooks=[(at, put)])
    return logit_difference(patched) - logit_difference(unpatched)


by_hand = patch_by_hand(23, 4)
for prompt, moved in zip(pairs.clean, by_hand, strict=True):
    print(f"{prompt:26} {moved:+.2f}")

# %% [markdown]
# For every pair, this one head moves the difference by 11 logits or more: a factor of about a hundred thousand between
# the odds of the two capitals.
#
# ## Every head
#
# Now the other 269. By hand each would cost a whole run of the model. But a new `z` in layer 23 changes nothing below
# layer 23, and nothing before the first token that differs, so most of that work is for nothing. `mh.plan` says what is
# left of it, before you pay:

# %%
print(mh.plan(model, pairs, intervention=mh.Patch(), metric=mh.logit_diff, base="corrupted"))

# %% [markdown]
# Line by line: one *unit* is one change to measure, here one head with its whole `z`; with several positions there are
# as many times more. Then the work, counted in full runs of the model on these prompts, where by hand we should have
# needed one for each unit. Then how many units go through the layers together, the memory, and a time measured on your
# machine. A sweep of a large model deserves a look at this first.

# %%
effect = mh.activation_patch(model, pairs, progress=False)
print(effect)

ours = effect.values.sel(layer=23, head=4)
assert abs(ours - by_hand.numpy()).max() < 1e-3  # the same numbers as by hand
assert abs(effect.values.sel(layer=10, head=6) - patch_by_hand(10, 6).numpy()).max() < 1e-3
effect.plot()

# %% [markdown]
# Red heads move the answer towards the right capital, blue heads away from it; layer 0 is at the top. Out of 270 there
# is one strong head, L23H4, and perhaps a dozen weaker ones. Blue is no error: a head may well argue against the answer
# that the others give.
#
# With a larger model you would not want to pay for all of them. `screen=0.1` first *estimates* every head from a single
# backward pass (the change of z times the slope of the metric; `mh.attribution_patch` gives that alone), runs the tenth
# that looks largest, and, so that you need not trust the estimate, a random sample of the others:

# %%
screened = mh.activation_patch(model, pairs, screen=0.1, progress=False)
told = screened.provenance["screen"]
print(f"{told['kept']} heads run, {len(told['sampled'])} of the {told['screened_out']} others tried.")
print(f"{told['false_negatives']} of these were larger than the median head that was run.")

assert screened.heads(12, by="absolute") == effect.heads(12, by="absolute")
assert told["false_negatives"] == 0

# %% [markdown]
# ## Which way round?
#
# - **Denoising**, which we did: the corrupted run with one head from the clean run. Is the head *enough* to bring the
#   answer back?
# - **Noising**: the clean run with one head from the corrupted run. Is the head *needed*?
#
# They are different questions. If two heads carry the same fact, either is enough and neither is needed; if a fact
# needs two heads at once, both are needed and neither is enough.

# %%
stars = effect.heads(5, by="absolute")


def side_by_side(**results) -> pd.DataFrame:
    """The scores of the same heads in several results."""
    table = pd.DataFrame(index=[str(head) for head in stars])
    for name, scores in results.items():
        table[name] = [scores[head]["score"] for head in stars]
    return table


noising = mh.activation_patch(model, pairs, heads=stars, direction="noising", progress=False)
both_ways = side_by_side(denoising=effect, noising=noising)
assert (both_ways.sum(axis=1).abs() < 0.7).all()
both_ways.round(2)

# %% [markdown]
# Here the two are near mirror images: what each head gives, it also takes away. That is the simplest case, and worth
# checking, not assuming.
#
# ## What to patch, and where
#
# So far we moved `z`, all that a head says. But a head does two things: it chooses where to look (q and k make its
# *pattern*), and it reads something there (v). Each can be moved alone; the head's `z` is then what attention makes of
# the new q, k, v or pattern.

# %%
sites = {
    site: mh.activation_patch(model, pairs, site=site, heads=stars, progress=False)
    for site in ("q", "k", "pattern", "v")
}
by_site = side_by_side(**sites, z=effect)
assert abs(by_site.loc["L23H4", ["q", "k", "pattern"]]).max() < 0.5
assert by_site.loc["L23H4", "v"] > 13
by_site.round(2)

# %% [markdown]
# All of it is in v: in both runs L23H4 looks at the same place, and finds something else there. Where is that place?
# Patch one token at a time. For v and k a position is a token that is *looked at*, for z, q and pattern a token that
# *looks*.

# %%
options = {"heads": "L23H4", "positions": "each", "progress": False}
by_token = pd.DataFrame(index=["The", " capital", " of", " (country)", " is"])
for site in ("v", "z"):
    where = mh.activation_patch(model, pairs, site=site, **options)
    by_token[site] = where["L23H4"]["score"].values
assert abs(by_token.loc[" (country)"] - [14.0, 0.0]).max() < 0.1
assert abs(by_token.loc[" is"] - [0.0, 13.9]).max() < 0.1
by_token.round(2)

# %% [markdown]
# So L23H4 picks something up at the country and lays it down at the last token. The first three tokens are the same in
# both prompts, so patching there can do nothing; -0.00 is rounding.
#
# ## Mistake 1: pairs that do not align
#
# A patch copies token 3 of one run onto token 3 of the other. That makes sense only if both tokens play the same part.
# `" Czechia"` is two tokens, `" Spain"` is one:

# %%
try:
    mh.activation_patch(model, capital_pairs("France/Italy Spain/Czechia"), progress=False)
except ValueError as error:
    message = str(error)
print(message)

assert message.startswith("pair 1 does not align: clean has 5 tokens and corrupted 6")

# %% [markdown]
# That is the harmless kind, because it stops you. The other kind does not: as many tokens, in another order. Compare
# what v of L23H4 does:

# %%
shuffled = {
    "clean": pairs.clean,
    "corrupted": [f"In {text.split()[3]} the capital is" for text in pairs.corrupted],
    "answer": pairs.answer,
    "wrong": pairs.wrong,
}
print("clean:    ", shuffled["clean"][0])
print("corrupted:", shuffled["corrupted"][0])
turned = mh.PromptPairs(**shuffled)
misaligned = mh.activation_patch(model, turned, site="v", heads="L23H4", progress=False)
print(f"v of L23H4, aligned:    {by_site.loc['L23H4', 'v']:.1f} logits")
print(f"v of L23H4, misaligned: {misaligned['L23H4']['score']:.1f} logits")

assert abs(misaligned["L23H4"]["score"] - 7.0) < 0.3

# %% [markdown]
# No error, and half of the effect is gone. The remedy costs one line: **name the positions that must correspond.** Then
# the package can check.

# %%
in_clean = [f" {text.split()[3]}" for text in shuffled["clean"]]
in_corrupted = [f" {text.split()[1]}" for text in shuffled["corrupted"]]
named = mh.PromptPairs(**shuffled, positions={"country": (in_clean, in_corrupted)})
try:
    mh.activation_patch(model, named, progress=False)
except ValueError as error:
    message = str(error)
print(message)

assert "it must be the same in both" in message

# %% [markdown]
# `PromptPairs.from_templates` names every field by itself, which is one reason to use it.
#
# ## Mistake 2: one prompt
#
# A single pair gives a number for every head, and it looks like knowledge. Here are eight pairs, one in each column.

# %%
first = effect.heads(9, by="absolute")
per_pair = pd.DataFrame(
    [effect.values.sel(layer=head.layer, head=head.head).values for head in first],
    index=[str(head) for head in first],
    columns=[text.split()[3] for text in pairs.clean],
)
assert (per_pair.loc["L23H4"] > 11).all()
assert per_pair.loc["L23H1"].min() < 0 and per_pair.loc["L23H1"].max() > 3
per_pair.round(1)

# %% [markdown]
# L23H4 stands out in every column. Below it the order changes from pair to pair: L23H1 moves Hungary's answer by 3
# logits, and England's not at all. Had you looked at one pair, you would know something about that country.
#
# The package does not hide it: with one pair the interval is empty and p is 1.

# %%
one = mh.activation_patch(model, capital_pairs("France/Italy"), heads=stars, progress=False)
print(one.top(3, by="absolute").round(3).drop(columns=["layer", "head"]).to_string())

assert one.dataset["ci_low"].isnull().all() and (one.top(5)["p_value"] == 1).all()

# %% [markdown]
# With eight pairs there is an interval, and yet no q value below 0.05:

# %%
print(effect.top(5, by="absolute").round(3).drop(columns=["layer", "head"]).to_string())

assert effect.dataset["q_value"].min() > 0.05

# %% [markdown]
# - `ci_low` to `ci_high`: where the mean is likely to lie for *other pairs like these*.
# - `p_value`: how often signs thrown at random would give a mean this far from 0. With eight pairs it cannot be less
#   than 2/256, however strong the head.
# - `q_value`: p, made fair for the number of heads that were looked at. With 270 heads and eight pairs the best can be
#   no more than suggestive.
#
# The way out: let these pairs *propose* heads, and let fresh pairs decide about those few.

# %%
fresh = capital_pairs(
    "Canada/Cuba Kenya/Chile Poland/Egypt Finland/Peru Bulgaria/Scotland "
    "Philippines/Netherlands Belgium/Iran Tunisia/Syria Australia/Iraq Jamaica/Switzerland"
)
proposed = effect.heads(18, by="absolute")
decided = mh.activation_patch(model, fresh, heads=proposed, progress=False)
print(decided.top(18, by="absolute").round(3).drop(columns=["layer", "head"]).to_string())

assert 15 <= int((decided.dataset["q_value"] < 0.05).sum()) <= 17
assert decided["L28H5"]["ci_low"] < 0 < effect["L28H5"]["ci_low"]
assert decided["L23H3"]["ci_low"] > effect["L23H3"]["score"]

# %% [markdown]
# Most of the eighteen hold. The last does not: L28H5's interval had left 0 out, and now holds it, as one expects of the
# weakest of the best of 270. And L23H3 is surely at work, but with hardly more than half of its first effect.
#
# ## Mistake 3: the wrong metric
#
# The same patch, read in five ways. The second to fourth are the log-probability of the right capital, its probability,
# and whether it is the model's first choice; the last is how far all the probabilities moved.


# %%
@mh.metric(unit="probability")
def probability(logits, context):
    return mh.log_prob(logits, context).exp()


readings = {}
for metric in (mh.log_prob, probability, mh.accuracy, mh.kl_divergence):
    found = mh.activation_patch(model, pairs, heads=stars, metric=metric, progress=False)
    readings[metric.__name__] = found
by_metric = side_by_side(logit_diff=effect, **readings)
assert by_metric.loc["L29H1", "logit_diff"] > 3
assert abs(by_metric["probability"].drop("L23H4")).max() < 0.01
assert (by_metric["accuracy"].drop("L23H4") == 0).all()
assert (by_metric["kl_divergence"] > 0).all()
by_metric.round(4)

# %% [markdown]
# - **Probability saturates.** In the corrupted run the right capital has a probability of about 0.0003. L29H1 makes its
#   odds against the wrong one almost thirty times better, and in the mean probability that is 0.007. L29H0 makes it
#   twenty times less likely, and that is 0.0004: there is nothing left to lose. By this column L23H4 would be alone in
#   the world. Near 1 it is the same: a head may take away a lot before the probability moves.
# - **Accuracy** is that, only harsher: it sees nothing until the first place changes hands.
# - **KL divergence has no sign.** L29H1 helps and L29H0 hinders, and both are somewhat above 0.1. It also counts every
#   change, whether or not it has to do with capitals. It is the right thing to ask *whether* a head matters at all, as
#   `mh.ablate` does by default.
# - **The logit difference** is linear in what the heads write, up to the last norm, has a sign, and asks one question
#   only. But just that one: a head that raises both capitals alike it does not see.
#
# There is no best metric. There is the one whose question is yours. When in doubt, look at two.
#
# ## What you may conclude, and what not
#
# - **You may say:** what tells one country from another reaches the last token mostly through L23H4, which reads it
#   from the country's token.
# - **Not:** "L23H4 answers the question." It was the *country* that we changed, so all that both prompts share, such as
#   that a capital is wanted, could not show. The corrupted prompt *is* the question. The exercise makes that plain.
# - **Not:** "L10H6 works on the answer." It has an effect, but whom does it speak to? That needs path patching, which
#   is the next notebook.
#
# ## Exercise: another question
#
# Keep the country, and change what is asked of it. Make pairs of *"The capital city of France is"* (`" Paris"`) and
# *"The official language of France is"* (`" French"`), patch the heads of layers 20 to 29, and look at L23H4. Which
# heads stand out now?

# %%
late = [(layer, head) for layer in range(20, 30) for head in range(model.n_heads)]
language = dict(mh.Relation.load("country_to_language").pairs)
countries = ["France", "Italy", "Germany", "Spain", "Japan", "Greece", "Portugal", "Hungary"]

# your turn: mh.PromptPairs(clean=[...], corrupted=[...], answer=[...], wrong=[...]),
# and mh.activation_patch(model, ..., heads=late)

# %% [markdown]
# <details><summary>One solution</summary>
#
# ```python
# question = mh.PromptPairs(
#     clean=[f"The capital city of {country} is" for country in countries],
#     corrupted=[f"The official language of {country} is" for country in countries],
#     answer=[f" {capital[country]}" for country in countries],
#     wrong=[f" {language[country]}" for country in countries],
#     positions={"country": [f" {country}" for country in countries]},
# )
# asked = mh.activation_patch(model, question, heads=late, progress=False)
# asked.top(5, by="absolute")
# ```
#
# L23H4 does nothing at all: it brings the same country in both runs, and does not care what is asked. Now L22H3 and
# L21H7 come first, which did next to nothing before. One pair of prompts, one question.
# </details>
