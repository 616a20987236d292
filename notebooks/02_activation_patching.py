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
# Take two prompts that differ in one word. Run the model on the first, but replace the output of *one* head with the
# output it had on the second. If the answer changes, this head carries information about that word. This is activation
# patching.
#
# We do it once by hand, with a dozen lines of hooks. Then the package does the same for all 270 heads. The rest of the
# notebook is about what is harder than the code: which run to patch, what to patch, and three common mistakes. It takes
# about a minute on two cores that do nothing else, and longer on a busy or older machine. You should know what a head,
# the residual stream and a logit are.

# %%
import pandas as pd
import torch

import mechheads as mh
from mechheads.patching import side_by_side

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
# We need three runs: the **clean** run, from which we keep the head's output `z`; the **corrupted** run as it is; and
# the corrupted run again, with the clean `z` in place of its own. A hook is a function that TransformerLens calls when
# an activation is computed. What the hook returns replaces the activation.
#
# We measure the **logit difference**: the logit of the right capital (`" Paris"`) minus the logit of the wrong one (`"
# Rome"`). It is negative in the corrupted run, and the question is how far one head moves it up.

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
# For every pair, this one head moves the difference by more than ten logits. Ten logits change the odds between the two
# capitals by a factor of about twenty thousand.
#
# ## Every head
#
# Now the other 269. By hand, each costs a whole run of the model. But a new `z` in layer 23 changes nothing in earlier
# layers, and nothing before the first token that differs, so most of that work can be saved. `mh.plan` says in advance
# what remains:

# %%
print(mh.plan(model, pairs, intervention=mh.Patch(), metric=mh.logit_diff, base="corrupted"))

# %% [markdown]
# One *unit* is one change to measure; here it is one head with its whole `z`. Next comes the work, counted in full runs
# of the model on these prompts (by hand, every unit would be one). Then come the number of units that run together, the
# memory, and a time measured on your machine. Look at the plan before you start a sweep of a large model.

# %%
effect = mh.activation_patch(model, pairs)
ours = effect.values.sel(layer=23, head=4).values
print(f"largest difference from the numbers by hand: {abs(ours - by_hand.numpy()).max():.0e} logits")
effect.top(5, by="absolute")

# %%
effect.plot()

# %% [markdown]
# Red heads move the answer towards the right capital, blue heads move it away. Layers go across, heads up. One head is
# very strong, L23H4, and about a dozen are weaker. Blue is not an error: some heads lower the answer that others raise.
#
# For a larger model you may not want to run every head. `mh.patching.attribution_patch` *estimates* the effect of every
# head from a single backward pass. Then only the tenth of the heads with the largest estimates is run:

# %%
estimated = mh.patching.attribution_patch(model, pairs)
some = mh.activation_patch(model, pairs, heads=estimated.heads(27, by="absolute"))
found = set(some.heads(5, by="absolute")) & set(effect.heads(5, by="absolute"))
print(f"{len(found)} of the five strongest heads are among the 27 that were run.")

# %% [markdown]
# ## Which run to patch?
#
# - **Denoising**, which we did, takes the corrupted run and patches one head from the clean run. It asks: is the head
#   *enough* to bring the answer back?
# - **Noising** takes the clean run and patches one head from the corrupted run. It asks: is the head *needed*?
#
# These are different questions. If two heads carry the same fact, either one is enough and neither is needed. If a fact
# takes two heads at once, both are needed and neither is enough.

# %%
stars = effect.heads(5, by="absolute")
noising = mh.activation_patch(model, pairs, heads=stars, direction="noising")
both_ways = side_by_side({"denoising": effect, "noising": noising}, stars)
both_ways

# %% [markdown]
# Here the two nearly mirror each other: what a head adds in one direction it takes away in the other. This is the
# simplest case. Check it; do not assume it.
#
# ## What to patch, and where
#
# So far we patched `z`, the whole output of a head. But a head does two things. It chooses which tokens to attend to: q
# and k give its *pattern*. And it reads something from these tokens: v. Each can be patched alone; the head's `z` is
# then computed from the new q, k, v or pattern.

# %%
sites = {site: mh.activation_patch(model, pairs, site=site, heads=stars) for site in ("q", "k", "pattern", "v")}
by_site = side_by_side({**sites, "z": effect}, stars)[[*sites, "z"]]
by_site

# %% [markdown]
# The effect of L23H4 is in v: it attends to the same position in both runs, and reads something else there. Which
# position is it? Patch one token at a time. For v and k, a position is a *key* token; for z, q and pattern it is a
# *query* token.

# %%
options = {"heads": "L23H4", "positions": "each"}
by_token = pd.DataFrame(index=["The", " capital", " of", " (country)", " is"])
for site in ("v", "z"):
    where = mh.activation_patch(model, pairs, site=site, **options)
    by_token[site] = where["L23H4"]["score"].values
by_token.round(2)

# %% [markdown]
# So L23H4 reads at the country and writes at the last token. The first three tokens are the same in both prompts, so
# patching there can do nothing.
#
# ## Mistake 1: pairs that do not align
#
# A patch copies token 3 of one run onto token 3 of the other. This makes sense only if both tokens have the same role.
# `" Czechia"` is two tokens, `" Spain"` is one:

# %%
try:
    mh.activation_patch(model, capital_pairs("France/Italy Spain/Czechia"))
except ValueError as error:
    not_aligned = str(error)
print(not_aligned)

# %% [markdown]
# This mistake is harmless, because it gives an error. If the prompts have the same number of tokens, but in another
# order, there is no error. Compare the effect of v of L23H4:

# %%
shuffled = {
    "clean": pairs.clean,
    "corrupted": [f"In {text.split()[3]} the capital is" for text in pairs.corrupted],
    "answer": pairs.answer,
    "wrong": pairs.wrong,
}
print("clean:    ", shuffled["clean"][0])
print("corrupted:", shuffled["corrupted"][0])
misaligned = mh.activation_patch(model, mh.PromptPairs(**shuffled), site="v", heads="L23H4")
print(f"v of L23H4, aligned:    {by_site.loc['L23H4', 'v']:.1f} logits")
print(f"v of L23H4, misaligned: {misaligned['L23H4']['score']:.1f} logits")

# %% [markdown]
# About half of the effect is gone. The remedy is one line: **name the positions that must correspond.** Then the
# package can check them.

# %%
in_clean = [f" {text.split()[3]}" for text in shuffled["clean"]]
in_corrupted = [f" {text.split()[1]}" for text in shuffled["corrupted"]]
named = mh.PromptPairs(**shuffled, positions={"country": (in_clean, in_corrupted)})
try:
    mh.activation_patch(model, named)
except ValueError as error:
    not_the_same = str(error)
print(not_the_same)

# %% [markdown]
# `PromptPairs.from_templates` names every field for you, which is one reason to use it.
#
# ## Mistake 2: one prompt
#
# A single pair gives a number for every head, and the numbers look convincing. Here are eight pairs, one in each
# column.

# %%
first = effect.heads(9, by="absolute")
per_pair = pd.DataFrame(
    [effect.values.sel(layer=head.layer, head=head.head).values for head in first],
    index=[str(head) for head in first],
    columns=[text.split()[3] for text in pairs.clean],
)
per_pair.round(1)

# %% [markdown]
# L23H4 stands out in every column. The order of the other heads changes from pair to pair. L23H1, for example, moves
# the answer for Hungary by several logits and the answer for England hardly at all. One pair tells you about one
# country.
#
# The package does not hide this. With one pair there is no interval, and p is 1.

# %%
one = mh.activation_patch(model, capital_pairs("France/Italy"), heads=stars)
one.top(3, by="absolute")

# %% [markdown]
# With eight pairs there is an interval, and some heads can be told from chance:

# %%
effect.top(5, by="absolute")

# %% [markdown]
# - `interval`, from `ci_low` to `ci_high`: where the mean effect over *all* pairs like these is likely to lie, if these
#   eight are a fair sample of them. It is no interval for the effect in another pair, nor for the mean of eight others:
#   both vary more.
# - `p_value`: how often random signs would give a mean this far from 0. With eight pairs it cannot be less than 2/256,
#   however strong the head is.
# - `p_family`: how often random signs would make *any* of the 270 heads stand out as clearly as this one. It is no
#   smaller than p, but it can be as small: six pairs are enough for 0.031, if a head is clear enough. Here L23H4 and a
#   few others are below 0.05. L24H4 has the same sign in all pairs too, but its effect varies more from pair to pair.
# - `q_value`: p corrected for the number of heads in another way, for lists of many heads. With eight pairs it would
#   take 43 heads with the least p to bring q below 0.05, so no head passes here.
#
# The effect of a head that was chosen as one of the largest is still partly luck. The remedy: let these pairs *propose*
# heads, and test only those few on fresh pairs.

# %%
fresh = capital_pairs(
    "Canada/Cuba Kenya/Chile Poland/Egypt Finland/Peru Bulgaria/Scotland "
    "Philippines/Netherlands Belgium/Iran Tunisia/Syria Australia/Iraq Jamaica/Switzerland"
)
proposed = effect.heads(18, by="absolute")
decided = mh.activation_patch(model, fresh, heads=proposed)
confirmed = int((decided.dataset["q_value"] < 0.05).sum())
print(f"{confirmed} of {len(proposed)} heads have q below 0.05 on fresh pairs.")
decided.top(18, by="absolute")

# %% [markdown]
# Most of the heads pass the test. The last one, L28H5, does not: its interval excluded 0 on the first pairs, and
# includes 0 now. This is to be expected for the weakest of the heads that were chosen from 270. And L23H3 surely does
# something, but its effect on fresh pairs is clearly smaller than on the pairs that chose it.
#
# ## Mistake 3: the wrong metric
#
# Here is the same patch, measured in five ways: by the logit difference, by the log-probability of the right capital,
# by its probability, by whether it is the model's first choice, and by how far all the probabilities moved (the KL
# divergence).


# %%
@mh.metric(unit="probability")
def probability(logits, context):
    return mh.log_prob(logits, context).exp()


readings = {}
for metric in (mh.log_prob, probability, mh.patching.accuracy, mh.kl_divergence):
    found = mh.activation_patch(model, pairs, heads=stars, metric=metric)
    readings[metric.__name__] = found
by_metric = side_by_side({"logit_diff": effect, **readings}, stars)[["logit_diff", *readings]]
by_metric

# %% [markdown]
# - **Probability saturates.** In the corrupted run the right capital has a probability near 0. L29H1 makes its odds
#   against the wrong capital many times better, and the mean probability hardly moves. L29H0 makes them many times
#   worse, and the probability cannot fall any further. In this column only L23H4 seems to do anything. The same happens
#   near 1, where a head may take away a lot before the probability moves.
# - **Accuracy** has the same problem, only worse: it does not change until another token becomes the first choice.
# - **KL divergence has no sign.** L29H1 helps and L29H0 hinders, and both are positive. It also counts every change,
#   whether or not it has to do with capitals. Use it to ask *whether* a head matters at all, as `mh.ablate` does by
#   default.
# - **The logit difference** has a sign, and is linear in what the heads write, up to the last norm. It answers one
#   question only: it misses a head that raises both capitals by the same amount.
#
# There is no best metric. Choose the one that answers your question. When in doubt, look at two.
#
# ## What you may conclude, and what not
#
# - **You may say:** what distinguishes one country from another reaches the last token mostly through L23H4, which
#   reads it from the country's token.
# - **Not:** "L23H4 answers the question." We changed only the *country*. What both prompts share, such as the fact that
#   a capital is asked for, has no effect here. Exercise 1 shows this.
# - **Not:** "L10H6 works on the answer." It has an effect, but on which heads? That needs path patching, the topic of
#   the next notebook.
#
# ## Exercises
#
# Fill in the answer and run the cell after it: it says whether you are right.
#
# ### 1. Another question
#
# Keep the country, and change what is asked about it. Make pairs of *"The capital city of France is"* (`" Paris"`) and
# *"The official language of France is"* (`" French"`), and patch the heads of layers 20 to 29. Which head has the
# largest effect now?

# %% tags=["exercise"]
late = [(layer, head) for layer in range(20, 30) for head in range(model.n_heads)]
language = dict(mh.Relation.load("country_to_language").pairs)
countries = ["France", "Italy", "Germany", "Spain", "Japan", "Greece", "Portugal", "Hungary"]

# your turn: mh.PromptPairs(clean=[...], corrupted=[...], answer=[...], wrong=[...]),
# and mh.activation_patch(model, ..., heads=late)
knows_the_question = None  # such as "L20H0"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    knows_the_question,
    lambda head: str(mh.HeadId.parse(head)) in ("L22H3", "L21H7"),
    right="this head did next to nothing while only the country changed.",
    hint="sort by absolute score, and check that both prompts of a pair ask about the same country.",
)

# %% [markdown] tags=["solution"]
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
# asked = mh.activation_patch(model, question, heads=late)
# knows_the_question = asked.heads(1, by="absolute")[0]
# ```
#
# L23H4 now does almost nothing: it carries the same country in both runs, whatever is asked. Two other heads come
# first, which did next to nothing before. A pair of prompts asks one question.
# </details>
#
# ### 2. A metric of your own
#
# The logit difference mixes two effects: a head may raise the right capital or lower the wrong one. Write a metric that
# gives the logit of the right capital alone. `logits` is [prompt, 1, d_vocab], and `context.tokens.answer` holds the id
# of the right capital for each prompt.


# %% tags=["exercise"]
right_logit = None  # your turn: replace this line by a function of logits and context, with @mh.metric(unit="logits")

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
logits_of_right = model.cache(pairs.corrupted).logits[:, -1].gather(1, right[:, None])[:, 0]
mh.testing.check_answer(
    right_logit,
    lambda metric: (
        abs(
            mh.activation_patch(model, pairs, heads="L23H4", metric=metric).dataset["base_metric"].values
            - logits_of_right.numpy()
        ).max()
        < 1e-3
    ),
    right="use it in mh.activation_patch(..., metric=right_logit).",
    hint="index logits with the row of each prompt, position 0, and context.tokens.answer.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# @mh.metric(unit="logits")
# def right_logit(logits, context):
#     row = torch.arange(len(logits))
#     return logits[row, 0, context.tokens.answer]
# ```
#
# Patch with it, and compare with `mh.logit_diff`: some heads work mostly by raising the right capital, others mostly by
# lowering the wrong one.
# </details>
#
# ### 3. How many pairs?
#
# Suppose that one head helps in every single pair. What is the smallest number of pairs with which its p value can be
# below 0.01? (With n pairs there are 2ⁿ ways to choose signs, and the least p is 2/2ⁿ.)

# %% tags=["exercise"]
enough_pairs = None  # your turn: a number

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    enough_pairs,
    lambda n: n == 8,
    right="2/256 is below 0.01, and 2/128 is not. With 270 heads to test you need more, or fewer heads.",
    hint="try n = 5: the least p is 2/32, which is about 0.06.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# enough_pairs = next(n for n in range(1, 20) if 2 / 2**n < 0.01)
# ```
#
# Plan the number of pairs before you run them, and keep some for the test.
# </details>
