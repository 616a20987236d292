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
# # From heads to a circuit
#
# One head rarely does a task alone. A **circuit** is a set of heads, together with the paths between them, that does
# what the whole model does on a task. This notebook looks for two:
#
# 1. **Induction.** The model continues a sequence that it has seen once before. Two heads work together.
# 2. **Indirect object identification.** The model finishes *"When Mary and John went to the store, John gave a drink
#    to"* with *" Mary"*. Many heads take part, and about ten have a large effect.
#
# We use the usual tools in the usual order: estimate every head cheaply, patch every head, follow the paths, put the
# heads together into a circuit, and then test the circuit. The last step matters most. A circuit is easy to draw and
# hard to prove.
#
# You should know activation patching and path patching (notebooks 02 and 03). The notebook takes about two minutes
# without a GPU.

# %%
import random
from collections import Counter

import numpy as np
import pandas as pd
import torch

import mechheads as mh

model = mh.load()


# %% [markdown]
# ## Part 1: induction
#
# Take random words and write them down twice. The first copy cannot be predicted. In the second copy every word can: it
# is the word that followed last time. First, does the model do it?

# %%
vocabulary = [model.tokenizer.decode([i]) for i in range(1000, 20000)]
words = [i for i, text in enumerate(vocabulary, 1000) if text[0] == " " and text[1:].isalpha() and len(text) > 4]
random_words = random.Random(0)
length = 15
copies = [random_words.sample(words, length) * 2 for _ in range(8)]

run = model.cache(copies)
log_prob = run.logits[:, :-1].log_softmax(-1).gather(-1, run.tokens.ids[:, 1:, None])[..., 0]
first_choice = run.logits[:, :-1].argmax(-1) == run.tokens.ids[:, 1:]
parts = {"first copy": slice(0, length - 1), "second copy": slice(length, None)}
pd.DataFrame(
    {
        "log-probability of the next word": [float(log_prob[:, part].mean()) for part in parts.values()],
        "first choice is right": [float(first_choice[:, part].float().mean()) for part in parts.values()],
    },
    index=list(parts),
).round(2)

# %% [markdown]
# It does: never in the first copy, and for many words of the second.
#
# ### Which heads look like induction heads?
#
# An induction head attends from a word to the word that **came after it** last time. So we can score each head by its
# attention alone: from each word of the second copy, how much attention is on the word after its first occurrence?

# %%
second = torch.arange(length, 2 * length)
looks = np.zeros((model.n_layers, model.n_heads, len(copies)))
for layer in range(model.n_layers):
    for head in range(model.n_heads):
        looks[layer, head] = run.pattern[layer, head][:, second, second - length + 1].mean(-1)
induction = mh.HeadScores.from_values(looks, name="induction score", unit="attention", kind="attention")
induction.plot()

# %% [markdown]
# A handful of heads in the later half stand out. But attention only shows what a head reads. To learn what a head
# *does*, we change it.
#
# ### Pairs in which only the order differs
#
# A good pair changes one thing. Here both prompts hold the same words, and both end with the same word, `a`:
#
# - clean: `... a b ... c d ... a`, so `b` should follow;
# - corrupted: `... c b ... a d ... a`, so `d` should follow.
#
# The model makes mistakes on random words. We keep pairs that it gets right both ways, and say so: the results below
# hold for prompts on which the model succeeds.


# %%
def induction_pairs(seed: int, n_pairs: int) -> mh.PromptPairs:
    draw = random.Random(seed)
    rows = []
    while len(rows) < n_pairs:
        a, b, c, d, *others = draw.sample(words, 10)
        clean = [*others[:2], a, b, *others[2:4], c, d, *others[4:], a]
        corrupted = [*others[:2], c, b, *others[2:4], a, d, *others[4:], a]
        logits = model.cache([clean, corrupted]).logits[:, -1]
        if logits[0, b] > logits[0, d] and logits[1, d] > logits[1, b]:
            rows.append((clean, corrupted, b, d))
    clean, corrupted, answer, wrong = map(list, zip(*rows, strict=True))
    return mh.PromptPairs(clean, corrupted, answer, wrong)


repeats = induction_pairs(0, 8)
for name, ids in {"clean": repeats.clean[0], "corrupted": repeats.corrupted[0]}.items():
    print(f"{name + ':':10}", model.tokenizer.decode(ids))

# %% [markdown]
# ### Estimate, then measure
#
# `mh.patching.attribution_patch` estimates the effects of 270 heads in a backward pass. `mh.activation_patch` measures
# it. The estimate takes seconds for any model; is it good enough? To save time we measure the 144 heads of layers 14 to
# 29. A head of a lower layer costs more, because more layers are run again after it.

# %%
estimated = mh.patching.attribution_patch(model, repeats)
later = [(layer, head) for layer in range(14, model.n_layers) for head in range(model.n_heads)]
measured = mh.activation_patch(model, repeats, heads=later)
first = measured.heads(8, by="absolute")
both = measured.top(8, by="absolute").assign(estimate=[estimated[head]["score"] for head in first])
both

# %%
measured.plot().update_xaxes(range=[13.5, 29.5])

# %% [markdown]
# For most heads the estimate is close. For the strongest of these heads, L16H0, it is almost zero. The estimate assumes
# that the effect grows in proportion to the step. This fails for heads whose effect passes through the attention of
# *another* head: a saturated softmax hardly changes for a small step, and changes a lot for a large one.
#
# So an estimate can find heads, but it cannot rule them out.
#
# ### The path
#
# L16H0 has a low induction score and yet the largest effect. What does it do? We look at its attention, and at the
# heads that it writes to. The prompt has eleven words; `b` is word 3 and `d` is word 7, counted from 0.

# %%
clean_run = model.cache(repeats.clean)
position = torch.arange(1, clean_run.tokens.ids.shape[1])
previous = clean_run.pattern["L16H0"][:, position, position - 1].mean()
print(f"L16H0: {previous:.0%} of its attention is on the word just before.")
on_b = clean_run.pattern["L18H6"][:, -1, 3].mean()
print(f"L18H6: from the last word, {on_b:.0%} of its attention is on b, the word after the first a.")

senders = measured.heads(8, by="absolute")
receivers = ["L18H6.q", "L18H6.k", "L18H6.v"]
paths = mh.path_matrix(model, repeats, receivers=receivers, senders=senders)
pd.DataFrame([paths[head].set_index("receiver")["score"] for head in senders], index=map(str, senders)).round(2)

# %% [markdown]
# Both halves of the classic induction circuit are here:
#
# - **L16H0 is a previous-token head.** It writes on every word which word came before it.
# - **L18H6 is an induction head.** It attends to a word that was preceded by the current one. Of its three inputs only
#   the key changes when L16H0 is patched: the key of a word now says which word came before it.
#
# A path runs from an earlier layer to a later one. The heads after layer 18 have no path to L18H6: their zeros are not
# measured, they follow from this rule.
#
# ## Part 2: indirect object identification
#
# In *"When Mary and John went to the store, John gave a drink to"* the next word should be *" Mary"*. John is the
# **subject**; Mary is the **indirect object**. The task is known from a study of GPT-2 small (Wang et al. 2022). It is
# an open question whether another model solves it with the same kind of heads.
#
# First: does this model do the task? We try five sentences, with the subject named first and with the subject named
# second. All names are one token.

# %%
common_names = """
    Mary John Tom James Dan Sarah Michael David Anna Paul Mark Lisa Kate Jack Emma Peter Robert Laura Alice Bob Susan
    Jane George Henry Simon Martin Rachel Linda Karen Kevin Brian Steven Jason Adam Eric Amy Julia Maria
"""
names = common_names.split()
sentences = {
    "store": "When {first} and {second} went to the store, {subject} gave a drink to",
    "garden": "When {first} and {second} walked in the garden, {subject} handed a flower to",
    "office": "When {first} and {second} sat in the office, {subject} gave a book to",
    "school": "While {first} and {second} were at the school, {subject} passed a note to",
    "park": "{first} and {second} had a long talk at the park. Afterwards {subject} gave the keys to",
}


def leads(sentence: str, subject_first: bool, seed: int = 0, n_prompts: int = 8) -> torch.Tensor:
    """By how many logits the other name is ahead of the subject's name after each prompt."""
    draw = random.Random(seed)
    prompts, ids = [], []
    for _ in range(n_prompts):
        subject, other = draw.sample(names, 2)
        first, second = (subject, other) if subject_first else (other, subject)
        prompts.append(sentence.format(first=first, second=second, subject=subject))
        ids.append([model.tokenizer(f" {name}").input_ids[0] for name in (other, subject)])
    logits = model.cache(prompts).logits[:, -1]
    right, wrong = logits.gather(1, torch.tensor(ids)).T
    return right - wrong


does_it = pd.DataFrame(
    [
        {
            "sentence": name,
            "subject named": order,
            "share right": float((lead > 0).float().mean()),
            "mean lead": float(lead.mean()),
        }
        for name, sentence in sentences.items()
        for order in ("first", "second")
        for lead in [leads(sentence, order == "first")]
    ]
)
does_it.round(2)

# %% [markdown]
# It does the task in the first four sentences, in both orders, with few mistakes. In the last one, which puts a full
# stop between the two parts, it makes many. So we study the first four and remember that **our circuit is a circuit for
# sentences of that form**. A mechanism for "the indirect object" in general would have to explain the fifth.
#
# ### The pairs
#
# The corrupted prompt names the *other* person as the subject: one token differs, and the right answer is the other
# name. Half of the pairs name the subject first. As before, we keep pairs that the model gets right both ways.


# %%
def object_pairs(seed: int, n_pairs: int) -> mh.PromptPairs:
    draw = random.Random(seed)
    rows = []
    while len(rows) < n_pairs:
        sentence = list(sentences.values())[len(rows) % 4]
        subject, other = draw.sample(names, 2)
        first, second = (subject, other) if len(rows) // 4 % 2 else (other, subject)
        clean = sentence.format(first=first, second=second, subject=subject)
        corrupted = sentence.format(first=first, second=second, subject=other)
        right, wrong = (model.tokenizer(f" {name}").input_ids[0] for name in (other, subject))
        logits = model.cache([clean, corrupted]).logits[:, -1]
        if logits[0, right] > logits[0, wrong] and logits[1, wrong] > logits[1, right]:
            rows.append((clean, corrupted, f" {other}", f" {subject}"))
    clean, corrupted, answer, wrong = map(list, zip(*rows, strict=True))
    return mh.PromptPairs(clean, corrupted, answer, wrong, positions={"subject": [9] * n_pairs})


pairs = object_pairs(0, 8)
print(pairs)

# %% [markdown]
# ### Which heads, and where they act
#
# The subject's second mention is token 9 of every prompt; we named it `subject`. The answer is read at the last token.
# Several analyses of these pairs follow. `mh.prepare` runs the pairs once for all of them and returns a *job*, which
# takes the place of the model and the pairs. We measure the heads of layers 14 to 29 again.

# %%
job = mh.prepare(model, pairs, sites=["z", "q", "k", "v"])
effect = mh.activation_patch(job, heads=later)
strong = effect.heads(10, by="absolute")
where = mh.activation_patch(job, heads=strong, positions=["subject", "last"])
by_place = pd.DataFrame(
    [where[head].set_index("pos")["score"] for head in strong], index=[str(head) for head in strong]
)
strongest = effect.top(10, by="absolute", columns=["score", "ci_low", "ci_high", "p_family"])
strongest.assign(subject=by_place["subject"], last=by_place["last"])

# %%
effect.plot().update_xaxes(range=[13.5, 29.5])

# %% [markdown]
# One head acts at the subject, L17H4. It was among the highest induction scores in part 1. All the others act at the
# last token. Red heads move the answer towards the right name, and blue heads move it away.
#
# ### What they look at

# %%
object_run = model.cache(pairs.clean)
token = {
    "subject, second mention": [9] * len(pairs),
    "subject, first mention": [text.index(text[9]) for text in object_run.tokens.strings],
    "the other name": [4 - text.index(text[9]) for text in object_run.tokens.strings],
}
row = torch.arange(len(pairs))
looks_at = pd.DataFrame(
    {
        name: [float(object_run.pattern[head][row, -1, torch.tensor(at)].mean()) for head in strong]
        for name, at in token.items()
    },
    index=[str(head) for head in strong],
)
looks_at.round(2)

# %% [markdown]
# Read the two tables together. From the last token,
#
# - **L23H0 attends to the other name** and helps: a *name mover*, which copies the name that it attends to.
# - **L24H4 attends to the other name** and harms: it lowers the name that it attends to. Wang et al. found such heads
#   in GPT-2 too, and called them *negative name movers*.
# - **L20H0 attends to the subject's second mention**, and helps.
# - **L23H3 does so too**, and helps about as much. Is it like L20H0? Exercise 2 asks.
#
# These names are guesses from attention. Paths can test them.
#
# ### Roles, by paths
#
# Wang et al. defined each role by a path: a *name mover* writes to the logits, an *S-inhibition* head to the queries of
# name movers, and heads before it to the values of S-inhibition heads. So three sweeps of path patching, one step back
# at a time, look for all of them. Here the clean run is the base: a negative number says that without this path, logits
# are lost.

# %%
steps = {
    "to the logits": "final",
    "to the queries of L23H0, L23H2": ["L23H0.q", "L23H2.q"],
    "to the value of L20H0": "L20H0.v",
}
roles = {step: mh.path_patch(job, receivers=to, senders=later) for step, to in steps.items()}
pd.DataFrame(
    {
        step: [f"{head} {found[head]['score']:+.2f}" for head in found.heads(6, by="absolute")]
        for step, found in roles.items()
    }
)

# %% [markdown]
# One head stands out in the second and in the third column, L20H0 and L17H4. The first column holds more: L23H3 writes
# most to the logits, L23H0 and L23H2 write the name too, and L24H4 and L29H0 write against it.
#
# ### The paths between them

# %%
receivers = ["L20H0.v", "L23H0.q", "L23H2.q", "L23H3.q", "L23H3.v", "L24H4.q"]
chain = ["L17H4", "L19H2", "L20H0", "L23H0", "L23H3"]
matrix = mh.path_matrix(job, receivers=["final", *receivers], senders=chain)
matrix.plot()

# %% [markdown]
# Here the clean run is the base, so blue means: without this path, logits are lost. The picture is a chain:
#
# - **L17H4 writes to the v of L20H0.** What L20H0 reads at the subject is partly what L17H4 wrote there.
# - **L20H0 writes to the q of L23H0** and of L23H2, and hardly to the logits. It changes what the name movers attend
#   to, as an S-inhibition head does.
# - **L23H3 and L23H0 write to the logits directly**, and to the q of L24H4, which has the opposite effect.
#
# So far this resembles the circuit of GPT-2. But look at the columns of L23H3: they are pale. One of the two heads with
# the largest effect does not depend on the chain.
#
# ## Part 3: is it a circuit?
#
# A list of important heads is not yet a circuit. The first question asked of one is **faithfulness**: keep these heads,
# and replace the outputs of all others with their outputs in the corrupted run. How much of the model's lead is left? 1
# is all of it, 0 is none.

# %%
ranked = effect.heads(28, by="absolute")
curve = {k: mh.patching.faithfulness(job, heads=ranked[:k]) for k in (1, 2, 5, 10, 28)}
pd.DataFrame(
    {k: {"faithfulness": found.score, "ci_low": found.ci_low, "ci_high": found.ci_high} for k, found in curve.items()}
).T.rename_axis("strongest heads").round(2)

# %% [markdown]
# Two surprises. The strongest head alone keeps almost nothing: it acts through other heads, and those are now replaced.
# And more heads are not always better: ten keep less than five, because some of the added heads work against the answer
# while their partners are still missing.
#
# The five were chosen on these pairs, so they may fit them by luck: measure them on fresh ones. And would any five
# heads do? Draw as many others of the same layers, a few times.


# %%
def others_like(heads, draw: random.Random) -> list[mh.HeadId]:
    """As many other heads of the same layers."""
    drawn = []
    for layer, n in Counter(head.layer for head in heads).items():
        free = [mh.HeadId(layer, number) for number in range(model.n_heads) if mh.HeadId(layer, number) not in heads]
        drawn += draw.sample(free, n)
    return drawn


circuit = ranked[:5]
fresh = mh.prepare(model, object_pairs(1, 16))
kept = mh.patching.faithfulness(fresh, heads=circuit)
by_chance = [
    mh.patching.faithfulness(fresh, heads=others_like(circuit, random.Random(seed))).score for seed in range(3)
]
print("the five strongest:", *circuit)
print(f"on the pairs that chose them: {curve[5].score:.2f}")
print(f"on fresh pairs:               {kept.score:.2f} ({kept.ci_low:.2f} to {kept.ci_high:.2f})")
print(f"random heads, fresh pairs:    {min(by_chance):.2f} to {max(by_chance):.2f}")

# %% [markdown]
# On fresh pairs the five keep most of the lead, and random heads keep none of it. A value above 1 would not be a
# success: the circuit would do better than the model, because heads that lower the right answer are left out. Is it
# *the* circuit? No. L23H0 is not in it, which we have just seen at work, and other sets of five may do as well.
#
# ### Several heads together
#
# Do the heads add up? `mh.patching.patch_sets` patches several heads at once, here as a share of the whole difference
# between the two runs.

# %%
sets = [["L20H0"], ["L23H3"], ["L20H0", "L23H3"], ["L23H0", "L23H1", "L23H2"], ["L20H0", "L23H0", "L23H1", "L23H2"]]
groups = mh.patching.patch_sets(job, sets=sets, normalize=True)
groups.table[["heads", "score", "ci_low", "ci_high"]].round(2)

# %% [markdown]
# L20H0 and L23H3 are two separate paths to the answer, and together they give at least the sum of what each gives
# alone. L20H0 and its receivers in layer 23 are one path, and together they give *less* than the sum: once L20H0 is
# patched, its receivers change as a consequence, and patching them too adds little.
#
# ### Given that other heads are gone
#
# Does another head stand in for the name movers? One that does has little to do while they work, so ablating one head
# at a time cannot find it. `given=` ablates some heads all the time. Ablate each later head with L23H0 and L23H2 gone,
# and again with all heads there: the difference of the two calls says how much *more* depends on a head once they are
# gone. Any heads that are gone change what later heads read, so do the same with random heads of layer 23 in their
# place.

# %%
gone = [mh.HeadId(23, 0), mh.HeadId(23, 2)]
rest = [mh.HeadId(layer, head) for layer in range(23, model.n_layers) for head in range(model.n_heads)]
asked = {"heads": [head for head in rest if head not in gone], "metric": mh.logit_diff, "intervention": "mean"}
intact = mh.ablate(fresh, **asked)
growth = mh.ablate(fresh, given=gone, **asked) - intact

by_random = []
for seed in range(3):
    drawn = others_like(gone, random.Random(seed))
    by_random.append(mh.ablate(fresh, given=drawn, **asked) - intact)
most = growth.heads(4, by="absolute")
changed = growth.top(4, by="absolute")[["score", "ci_low", "ci_high", "p_family"]]
changed.insert(0, "intact", [intact[head]["score"] for head in most])
for seed, found in enumerate(by_random):
    changed[f"random {seed}"] = [found[head]["score"] for head in most]
changed.round(2)

# %% [markdown]
# Two heads change. **L23H1**: with all heads there, the lead is a little larger without it (`intact`); with the name
# movers gone, it is smaller without it. No random pair turns it so far, so it does a part of their work once they are
# gone. **L24H4** changes too, and the random pairs warn us why: it lowers the name that others have raised, so with
# less raised it has less to lower. One of the random pairs holds L23H3, which writes that name as well, and does nearly
# as much. A change alone is no stand-in: look at the sign, and at the control.
#
# ## What you may conclude, and what not
#
# - **You may say:** in sentences of these four forms, an induction head, a head that reads the subject's second mention
#   and name movers form a chain, and patching its paths one by one changes the answer.
# - **You may say:** five heads keep most of the lead over fresh names, and random heads of their layers keep none.
# - **Not:** "These heads are the circuit." Another search ends in another set, heads that we saw at work are left out,
#   and we did not measure the heads of the first fourteen layers.
# - **Not:** "The model identifies the indirect object." Another sentence may break it, as the fifth sentence did.
# - **Not:** "It works as in GPT-2." Some paths are alike, but L23H3, one of the two strongest heads, is not part of the
#   chain.
# - **Not:** anything about what our pairs hold fixed. Both prompts name the same two people, so a head that separates
#   names from other words has no effect here.
#
# ## Exercises
#
# Fill in the answer and run the cell after it: it says whether you are right.
#
# ### 1. Attention is not effect
#
# In part 1, find a head that is among the five highest induction scores and that moves the answer less than half as
# much as L18H6.

# %% tags=["exercise"]
only_looks = None  # your turn: such as "L0H0"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    only_looks,
    lambda head: (
        mh.HeadId.parse(head) in induction.heads(5)
        and abs(measured[head]["score"]) < abs(measured["L18H6"]["score"]) / 2
    ),
    right="it attends like an induction head, and the answer hardly depends on it.",
    hint="list induction.heads(5), and look up each of them in measured.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# {str(head): round(measured[head]["score"], 2) for head in induction.heads(5)}
# only_looks = "L17H3"
# ```
#
# Several heads attend to the same tokens and have far smaller effects. Attention does not show what a head writes, or
# whether later heads read it.
# </details>
#
# ### 2. What changes in L23H3?
#
# Both L20H0 and L23H3 attend to the subject's second mention. Patch the inputs of L23H3 one at a time (`site="q"`,
# `"k"`, `"v"`). Which one carries its effect?

# %% tags=["exercise"]
carries = None  # your turn: "q", "k" or "v"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    carries,
    lambda answer: answer == "v",
    right="it attends to the same token in both runs, and reads another name there.",
    hint='compare mh.activation_patch(job, heads="L23H3", site=...) for the three sites.',
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# for site in "qkv":
#     patched = mh.activation_patch(job, heads="L23H3", site=site)
#     print(site, round(patched["L23H3"]["score"], 2))
# carries = "v"
# ```
#
# L23H3 always attends to the name that was mentioned last, and makes that name less likely. This is enough to be right
# here, and it has nothing to do with who gave what to whom. Part of this model's skill is a simple rule: do not repeat
# the last name.
# </details>
#
# ### 3. A circuit of your own
#
# Choose at most six heads that together have a faithfulness between 0.7 and 1.3 on the fresh pairs.

# %% tags=["exercise"]
my_circuit = None  # your turn: such as ["L0H0", "L1H2"]

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    my_circuit,
    lambda heads: len(heads) <= 6 and 0.7 < mh.patching.faithfulness(fresh, heads=heads).score < 1.3,
    right="these few heads keep most of the lead. And without them, does the model lose it?",
    hint="start from the strongest heads of effect, and leave out one that works against the answer.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# my_circuit = effect.heads(5, by="absolute")
# ```
#
# The five strongest heads do. `mh.patching.patch_sets(fresh, sets=[my_circuit], normalize=True)` asks the other way
# round: how much is gone if only these are patched.
# </details>
