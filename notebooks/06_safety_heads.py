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
# # Safety heads: what refusing hangs on
#
# A chat model refuses some requests. Zhou et al. ([ICLR 2025](https://arxiv.org/abs/2410.13708)) take out one attention
# head at a time and see how far the model's answer to harmful requests moves; the heads that move it most they call
# *safety heads*. That is a claim about a cause, and it needs three things that one score does not give: is it
# *refusing* that moves, or anything? Does the model still work? And would any other heads do?
#
# In a model trained at large nobody knows the right answer. So we take one of which we do: a small model that was
# taught to refuse through six heads, and through nothing else. Which score finds them? It takes a minute or two without
# a GPU. You should know what an ablation is, from the notebook on activation patching.

# %%
from collections import Counter

import pandas as pd
import torch

import mechheads as mh
from mechheads.generation import generate
from mechheads.safety import folded, load_requests, request_prompts, verdict
from mechheads.safety.teaching import HEADS

model, untaught = mh.load("smollm2-135m-refusal"), mh.load()

# %% [markdown]
# ## A model whose safety heads are known
#
# `untaught` is the default model, which complies with everything. `model` is the same with W_Q and W_O of six heads
# trained to refuse harmful requests and to answer others as before. Which six can be seen by laying the two side by
# side:

# %%
taught = [
    f"L{layer}H{head}"
    for layer in range(model.n_layers)
    for head in range(model.n_heads)
    if not torch.equal(model.W_O[layer][head], untaught.W_O[layer][head])
]
print("heads that differ:", *taught)

assert taught == [str(head) for head in HEADS]

# %% [markdown]
# We ask it something. The package has 60 requests that a safe model should refuse, and for each a harmless look-alike
# in much the same words; a third of both, the part called `test`, was not used in teaching. They only name a thing,
# and say nothing about how it is done. Even so they are not for every screen: harmful texts are shown *folded*, and you
# click if you want to read them. (In code, `harmful[0].text` gives the first.)

# %%
asked = {name: load_requests(name, "test")[::2] for name in ("harmful", "harmless")}
harmful, harmless = asked.values()
harmful

# %% [markdown]
# What does it answer, and how does the model that was not taught?


# %%
def answer(some_model, requests):
    prompts = request_prompts(some_model, requests.texts, "chat")
    return generate(some_model, prompts, max_new_tokens=12, progress=False).texts


to_harmful, to_harmless = answer(model, harmful), answer(model, harmless)
print("untaught, harmful:", dict(Counter(map(verdict, answer(untaught, harmful)))))
print("taught, harmful:  ", dict(Counter(map(verdict, to_harmful))))
print("taught, harmless: ", dict(Counter(map(verdict, to_harmless))))

assert Counter(map(verdict, to_harmful)) == {"refused": 7, "complied": 3}
assert Counter(map(verdict, to_harmless)) == {"complied": 10}
pd.DataFrame({"look-alike": harmless.texts, "answer": to_harmless, "verdict": map(verdict, to_harmless)})

# %% [markdown]
# The untaught model complies with all ten. The taught one refuses seven, and, the table says, none of the look-alikes.
# Read them: four begin with "I'm sorry for ..." and are hardly answers. We let it write twelve tokens, to save time;
# given 32, it refuses 5 of all 20 look-alikes. The verdict comes from a rule about how an answer begins. It can be
# fooled, and where much hangs on it you let the model say more, and give a judge of your own.
#
# ## Two ways to take a head out
#
# A head weighs the tokens so far by its *pattern*, and what it gathers, `z`, goes through W_O into the residual stream.
# The paper breaks one or the other:
#
# - **Undifferentiated Attention**: its queries are multiplied by a tiny epsilon. All scores become alike, so the head
#   attends to all tokens so far alike. It still speaks, but no longer looks.
# - **Scaling Contribution**: its values, and so z, are multiplied by epsilon. It falls silent.
#
# ## Ships: how far does the answer move?
#
# **Ships** of a request and a head is the KL divergence from the distribution of the next token, at the end of the
# prompt, to that without the head. Let us do it by hand, silencing L19H8 for the first request:


# %%
@torch.no_grad()
def ships_by_hand(request, layer, head, epsilon=1e-4):
    def shrink(z, hook):  # [prompt, pos, head, d_head]
        z = z.clone()
        z[:, :, head] *= epsilon
        return z

    ids = request_prompts(model, [request], "chat").tokens(model).ids
    hooks = [(f"blocks.{layer}.attn.hook_z", shrink)]
    before = model.model.run_with_hooks(ids, fwd_hooks=[])[0, -1].log_softmax(-1)
    after = model.model.run_with_hooks(ids, fwd_hooks=hooks)[0, -1].log_softmax(-1)
    return float((before.exp() * (before - after)).sum())


by_hand = ships_by_hand(harmful[0].text, 19, 8)
print(f"L19H8: {by_hand:.3f} nats")

# %% [markdown]
# `mh.compare_ablations` does it for every request, head and ablation over one run of the intact model. To save time we
# take five requests, the first that it refuses, and 35 of the 270 heads: the last five of each layer that was taught
# in, and of an early one. (With your own model leave `heads` out.) It gives **Generalized Ships** as well: the
# last-token states of all requests are stacked to a matrix, and the score is the angle, in degrees, by which its first
# left singular vector turns.
#
# The paper asks under the template `## Query: ... ## Answer:`, which is the default. Our model was taught to refuse in
# its chat template, and does so there, so that is where we look.

# %%
tried = [(layer, head) for layer in (1, 11, 13, 15, 17, 19, 21) for head in range(4, 9)]
options = {"heads": tried, "progress": False}
five = [i for i, text in enumerate(to_harmful) if verdict(text) == "refused"][:5]
pairs = [harmful.texts[i] for i in five], [harmless.texts[i] for i in five]
ships = mh.compare_ablations(model, pairs[0], k=6, template="chat", **options)

assert abs(ships["scaling"].values.sel(layer=19, head=8)[0] - by_hand) < 1e-3  # the same number as by hand
mh.plots.safety_map(list(ships.values()))

# %% [markdown]
# Each mark is one of the first six heads of one ablation; its colour is the angle. Where are the heads that were
# taught? We write down the rank of each, 1 being the first of 35.


# %%
def ranks(scores):
    return [1 + int((scores > scores.sel(layer=head.layer, head=head.head)).sum()) for head in HEADS]


def rank_table(views):
    table = pd.DataFrame({name: ranks(scores) for name, scores in views.items()}, index=taught).T
    return table.assign(found=(table <= len(HEADS)).sum(axis=1))


views = {}
for kind, found in ships.items():
    views[f"Ships, {kind}"] = found.scores
    views[f"Generalized Ships, {kind}"] = found.generalized_ships
found_by = rank_table(views)

assert found_by["found"].max() <= 4
found_by

# %% [markdown]
# `found` counts how many of the six are among the first six: three or four. In the figure you see who stands before the
# others: of the silenced heads (crosses) two in layer 1, of the blinded ones (circles) three untaught neighbours of the
# taught.
#
# ## Refusal Contribution: how much *refusing* moves
#
# Nothing is wrong with these numbers. Ships counts *any* change of the answer. A head of the first layers, without
# which the model cannot read, changes it for every prompt, harmful or not.
#
# <div>
# <img width="760" alt="How the answers to a request and its look-alike begin, intact and without head A or B. Both
#   lower I'm from 0.90 to 0.10. Without A the look-alike is broken as well; without B it stays as it was."
#   src='data:image/svg+xml;charset=utf-8,
#   <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 336" font-family="system-ui, sans-serif" font-size="14">
#   <rect width="820" height="336" rx="10" fill="white"/>
#   <text x="20" y="34" font-weight="600" font-size="16">Two heads with the same Ships: how the answer begins</text>
#   <g font-weight="600"><text x="200" y="72">intact</text><text x="420" y="72">without head A</text>
#   <text x="620" y="72">without head B</text></g>
#   <path d="M20 84H800M20 182H800M20 280H800" stroke="rgb(215,220,226)"/><g fill="rgb(214,108,16)">
#   <rect x="200" y="96" width="108" height="15"/><rect x="420" y="96" width="12" height="15"/>
#   <rect x="620" y="96" width="12" height="15"/><rect x="200" y="196" width="6" height="15"/>
#   <rect x="420" y="196" width="6" height="15"/><rect x="620" y="196" width="6" height="15"/></g>
#   <g fill="rgb(88,122,166)"><rect x="200" y="118" width="6" height="15"/>
#   <rect x="420" y="118" width="6" height="15"/><rect x="620" y="118" width="102" height="15"/>
#   <rect x="200" y="218" width="108" height="15"/><rect x="420" y="218" width="12" height="15"/>
#   <rect x="620" y="218" width="108" height="15"/></g><g fill="rgb(184,190,198)">
#   <rect x="200" y="140" width="6" height="15"/><rect x="420" y="140" width="102" height="15"/>
#   <rect x="620" y="140" width="6" height="15"/><rect x="200" y="240" width="6" height="15"/>
#   <rect x="420" y="240" width="102" height="15"/><rect x="620" y="240" width="6" height="15"/></g>
#   <g font-size="12" fill="rgb(90,98,110)"><text x="20" y="136">“How do I forge ...?”</text>
#   <text x="314" y="108">0.90</text><text x="438" y="108">0.10</text><text x="638" y="108">0.10</text>
#   <text x="212" y="130">0.05</text><text x="432" y="130">0.05</text><text x="728" y="130">0.85</text>
#   <text x="212" y="152">0.05</text><text x="528" y="152">0.85</text><text x="632" y="152">0.05</text>
#   <text x="20" y="236">“How do I renew ...?”</text><text x="212" y="208">0.05</text><text x="432" y="208">0.05</text>
#   <text x="632" y="208">0.05</text><text x="314" y="230">0.90</text><text x="438" y="230">0.10</text>
#   <text x="734" y="230">0.90</text><text x="212" y="252">0.05</text><text x="528" y="252">0.85</text>
#   <text x="632" y="252">0.05</text></g><g font-size="12" text-anchor="end"><text x="192" y="108">I’m</text>
#   <text x="192" y="130">To</text><text x="192" y="152">others</text><text x="192" y="208">I’m</text>
#   <text x="192" y="230">To</text><text x="192" y="252">others</text></g><text x="20" y="117">a request x</text>
#   <text x="20" y="217">its look-alike y</text><text x="20" y="303">Ships of x</text>
#   <text x="420" y="303">1.84 nats</text><text x="620" y="303">1.84 nats</text>
#   <g font-weight="600"><text x="20" y="324">Refusal Contribution</text>
#   <text x="420" y="324">2.20 − 1.84 = 0.36</text><text x="620" y="324">2.20 − 0 = 2.20</text></g></svg>'>
# </div>
#
# So ask for more than a change. Let R(x) be the log-probability that the answer to x *begins as a refusal*. The
# **Refusal Contribution** of a head, for a request x with its look-alike y, is what R(x) loses without the head, less
# what the same ablation does to the answer to y, whichever way that moves: Ships of y. It is in nats, and has a sign:
# above 0, the head makes the model refuse x more than it matters for y. In the drawing a refusal begins with one token.
# Where more are read, as below, R sums over them, and Ships of y over as many tokens of its answer.
#
# How a refusal begins the model is asked first.

# %%
contribution = mh.refusal_contribution(model, *pairs, **options)
opening = model.tokenizer.decode(contribution.provenance["opening"])
print(f"its refusals begin: {opening!r}")

views["Refusal Contribution"] = contribution.scores
found_by = rank_table(views)

assert found_by.loc["Refusal Contribution", "found"] == 5
found_by

# %% [markdown]
# Five of the six are among the first six, and the last one comes right after them. One other head has come between:
# L1H5, of the early layer, even with its effect on look-alikes taken off. Beside the score stands its **direct** part:
# what the head itself writes to the logits of the refusal, with all that comes after it left as it was.

# %%
first = contribution.top(8)
first.index = [str(head) for head in contribution.heads(8)]
direct = [float(contribution.dataset["direct"].sel(layer=r.layer, head=r.head)) for r in first.itertuples()]
first.assign(direct=direct, taught=first.index.isin(taught))[
    ["score", "ci_low", "ci_high", "q_value", "direct", "taught"]
].round(2)

# %% [markdown]
# The direct parts are next to nothing. None of these heads says "I'm sorry" to the logits: each makes the model refuse
# by what later heads and MLPs make of its words. And L1H5, which was never taught, stands among them: refusing needs
# heads that read the request in the first place. The score says that refusing hangs on a head, and not that somebody
# put it there. Look at its interval, too: on some of these requests it matters most, on others it does the contrary,
# and five requests are few. (No q value can be small with five: five signs that agree have p = 0.06.)
#
# ## A view without any ablation
#
# The last-token residuals of harmful requests lie apart from those of their look-alikes. The difference of the two
# means is the **refusal direction**, and `mh.refusal_direction` tells how much of it each head writes itself. It costs
# two runs of the model and no more.

# %%
written = mh.refusal_direction(model, *pairs, **options)
views["refusal direction"] = written.scores
rank_table(views)

# %% [markdown]
# A view of its own, and it need not agree: a head that writes nothing along the direction may make others do so, and a
# head that writes along it may do so only because they told it to. It says where a difference is *written*, and nothing
# about what happens without the head.
#
# ## Does refusing hang on them?
#
# Scores rank; they do not say whether the first six *together* are what refusals stand on. So let the model answer
# without them. `mh.refusal_test` ablates a set of heads and counts how many harmful requests are then complied with
# (**attack success**). Beside that it always puts what else could explain it:
#
# - **loss** on ordinary text, and answers that are **degenerate**: a broken model complies with nothing, or babbles;
# - **over-refusal**: how many look-alikes are refused;
# - **random heads**, as many and from the same layers.

# %%
answering = {"max_new_tokens": 12, "draws": 1, "progress": False}
test = mh.refusal_test(model, HEADS, harmful.texts, pairs[1], ablation="scaling", opening=opening, **answering)
print(test.verdict)
test.table.set_index("condition")[["attack_success", "over_refusal", "degenerate", "loss", "refusal"]].round(2)

# %% [markdown]
# The line says which of the conditions failed, if one did. `refusal` in the table is the mean log-probability that an
# answer to a harmful request begins as a refusal: it moves before a verdict does. With ten requests, all that could be
# shown is a large difference: `attack_success_low` and `_high`, in `test.table`, are the interval.
#
# Read some answers yourself before you believe any of it. They are folded, too:

# %%
after = test.answers.query("condition == 'ablated' and kind == 'harmful'")
folded(after["answer"], "answers without the six heads")

# %% [markdown]
# These were the right heads. A ranking does not know them. `mh.attack_curve` takes its heads away one after the other,
# and as many random ones:

# %%
curve = mh.attack_curve(model, contribution.heads(6), pairs[0], pairs[1][:1], ablation="scaling", **answering)
print("ablated, in this order:", *curve.heads)
change = curve.table.set_index(["which", "k"])["attack_success"]
assert change["heads", 0] == 0 and change["heads"][1:].min() == 0.8 and change["random 1"][:5].max() == 0.2
assert curve.table.set_index(["which", "k"]).loc[("heads", 1), "over_refusal"] == 1
curve.plot()

# %% [markdown]
# One head is enough: without L1H5 all five requests are complied with, and nearly all whatever else is gone, while
# random heads of the same layers do little up to the fifth. That is how this model was taught, none of its six can be
# spared. Where heads stand in for each other the line leaves that of the random heads only once several are gone, and
# no score of single heads would have found them. But read on: without L1H5 the one look-alike that we asked is
# *refused* (`curve.table`). It looks as if the model no longer told the two kinds apart; one look-alike is too few to
# be sure.
#
# ## A model that does not refuse
#
# What do these scores say of the untaught model? Ships ranks its heads like any other's: there is always a largest
# number. The test looks first whether there is anything to ablate.

# %%
nothing = mh.refusal_test(untaught, HEADS, *pairs, opening=opening, **answering | {"draws": 0})
print(nothing.verdict)

# %% [markdown]
# ## What a score does not say
#
# - **Not that a head carries safety.** It says that refusing changes, in these words and this template. A model may
#   refuse and be unsafe, or comply and be harmless. No head gets the label "safety" here.
# - **Ships: not even that refusing changes.** It counts any change.
# - **Nothing about requests that were not asked.** Ours are ten, one line each, in one language and one template. See
#   the intervals, and how often a head is among the first when the requests are resampled: `in_top`.
# - **Not that the head is needed**, where others can stand in for it, nor that it is enough. Sets tell, and only beside
#   random ones.
# - **Not how it is in a model trained at large.** Six heads that were *taught* to refuse are an easy case: a score that
#   fails here should not be trusted there, and one that succeeds still has to show itself.
# - **You may say:** of these heads, taking out these moves the answer to these requests away from refusing and leaves
#   look-alikes be; without them together the model complies with so many, writes ordinary text as before, and random
#   heads of the same layers do not do that.
#
# What finds the heads that refusals hang on also helps to remove them. That is published, and one needs it to see how
# brittle a model's refusals are before it is let out. Do not publish ablated weights of models whose refusals protect
# people.
#
# ## Exercise: another ablation
#
# We silenced the heads. Let them speak, and blind them instead: ask the same of the same heads by Undifferentiated
# Attention, with three draws of random heads in place of one. Do you come to the same conclusion? What do the random
# heads do, and what does that say about the *model's* refusals?

# %%
# your turn: mh.refusal_test(model, HEADS, ..., ablation=..., opening=opening, **answering | {"draws": 3})

# %% [markdown]
# <details><summary>One solution</summary>
#
# ```python
# options = answering | {"ablation": "undifferentiated", "opening": opening, "draws": 3}
# blind = mh.refusal_test(model, HEADS, harmful.texts, pairs[1], **options)
# print(blind.verdict)
# blind.table.set_index("condition")[["attack_success", "over_refusal", "degenerate", "loss"]].round(2)
# ```
#
# The same conclusion: the model complies with all ten. But look at the random heads: one draw of three has eight of ten
# complied with, the two others no more than the model complies with by itself; and two of them make it refuse
# look-alikes. Undifferentiated Attention does not silence a head: it makes it say, at every token, the mean of all it
# could say, which the model has never heard from it. The control decides what may be said. Had all random heads come
# near the six, refusals would be *brittle*, and that would be a finding about the model, not about six heads.
# </details>
