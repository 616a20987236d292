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
# # Safety heads: which heads does refusing depend on?
#
# A chat model refuses some requests. Zhou et al. ([ICLR 2025](https://arxiv.org/abs/2410.13708)) ablate one attention
# head at a time and measure how far the model's answer to harmful requests moves. They call the heads that move it most
# *safety heads*. This is a claim about a cause, and one score is not enough for it. Is it *refusing* that changes, or
# the answer in general? Does the model still work? And would any other heads have the same effect?
#
# In an ordinary model nobody knows the right answer. So we take a model for which we know it: a small model that was
# taught to refuse through six heads, and through nothing else. Which score finds them? The notebook takes about two
# minutes on two cores that do nothing else, and longer on a busy or older machine. You should know what an ablation is
# (notebook 02).

# %%
from collections import Counter

import pandas as pd
import torch

import mechheads as mh
from mechheads.generation import Sampling, generate
from mechheads.safety import folded, load_requests, ordinary_texts, request_prompts, taught_heads, verdict

model, untaught = mh.load("smollm2-135m-refusal"), mh.load()
HEADS = taught_heads("smollm2-135m-refusal")

# %% [markdown]
# ## A model whose safety heads are known
#
# `untaught` is the default model, which was not taught to refuse. `model` is the same model, but W_Q and W_O of six
# heads were trained so that it refuses harmful requests and answers others as before. A comparison of the two shows
# which six:

# %%
taught = [
    f"L{layer}H{head}"
    for layer in range(model.n_layers)
    for head in range(model.n_heads)
    if not torch.equal(model.W_O[layer][head], untaught.W_O[layer][head])
]
print("heads that differ:", *taught)

# %% [markdown]
# The package has 60 requests that a safe model should refuse. Each has a harmless look-alike in similar words. A third
# of both, the part called `test`, was not used for teaching. The requests name a harmful act and do not say how it is
# done. Even so, not everyone wants them on the screen: harmful texts are shown *folded*, and you click to read them.
# (In code, `harmful[0]` is the first.)

# %%
asked = {name: load_requests(name, "test")[::2] for name in ("harmful", "harmless")}
harmful, harmless = asked.values()
harmful

# %% [markdown]
# What does the model answer, and what does the untaught model answer?


# %%
def answer(some_model, requests):
    prompts = request_prompts(some_model, requests.texts, "chat")
    return generate(some_model, prompts, Sampling(max_new_tokens=9)).texts


to_harmful, to_harmless = answer(model, harmful), answer(model, harmless)
of_untaught = answer(untaught, harmful[:5])
print("untaught, harmful:", dict(Counter(map(verdict, of_untaught))), "(the first five)")
print("taught, harmful:  ", dict(Counter(map(verdict, to_harmful))))
print("taught, harmless: ", dict(Counter(map(verdict, to_harmless))))

pd.DataFrame({"look-alike": harmless.texts, "answer": to_harmless, "verdict": map(verdict, to_harmless)})

# %% [markdown]
# The untaught model refuses none of the five. The taught one refuses most of the ten, and, by this table, none of the
# look-alikes. Read the answers: several begin with "I'm sorry for ..." and are hardly answers. To save time we
# let the model write only nine tokens; with more tokens, some of these answers turn out to be refusals. The verdict
# comes from a rule about how an answer begins, and such a rule can be fooled. If a lot depends on it, let the model
# write more, and pass a judge of your own.
#
# ## Two ways to ablate a head
#
# A head weights the tokens so far by its *pattern*, and its output `z` goes through W_O into the residual stream. The
# paper ablates one or the other:
#
# - **Undifferentiated Attention** multiplies the queries by a tiny epsilon. All scores become almost equal, so the head
#   attends to all tokens so far equally. It still writes, but it no longer chooses.
# - **Scaling Contribution** multiplies the values, and so z, by epsilon. The head no longer writes.
#
# ## Ships: how far does the answer move?
#
# **Ships** of a request and a head is the KL divergence from the distribution of the next token, at the end of the
# prompt, to the same distribution without the head. By hand, for L16H3 scaled down and the first request:


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


by_hand = ships_by_hand(harmful[0], 16, 3)
print(f"L16H3: {by_hand:.3f} nats")

# %% [markdown]
# `mh.safety.compare_ablations` does this for every request, head and ablation, with one run of the intact model. To
# save time we take the first five requests that the model refuses, and 35 of the 270 heads: five of each layer that has
# taught heads, and of one early layer. (With your own model leave `heads` out.) It also gives **Generalized
# Ships**. For this, the last-token states of all requests are stacked to a matrix. The score is the angle, in degrees,
# by which the first left singular vector of the matrix turns.
#
# The paper uses the template `## Query: ... ## Answer:`, which is the default. Our model was taught to refuse in its
# chat template, so we use that.

# %%
tried = [(layer, head) for layer in (1, 14, 15, 16, 18, 19, 21) for head in (1, 3, 4, 5, 7)]
options = {"heads": tried}
five = [i for i, text in enumerate(to_harmful) if verdict(text) == "refused"][:5]
pairs = [harmful.texts[i] for i in five], [harmless.texts[i] for i in five]
ships = mh.safety.compare_ablations(model, pairs[0], k=6, template="chat", **options)

mh.plots.safety_map(list(ships.values()))

# %% [markdown]
# Each mark is one of the first six heads for one ablation; its colour is the angle. Where are the taught heads? We list
# their ranks; rank 1 is the first of 35.


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

found_by

# %% [markdown]
# `found` counts how many of the six taught heads are among the first six of these 35. No ranking has them all. In the
# figure you see which other heads come before them, such as L1H5 for Scaling Contribution (crosses), which nobody
# taught.
#
# ## Refusal Contribution: how much *refusing* changes
#
# There is nothing wrong with these numbers. Ships counts *any* change of the answer. A head of the first layers, which
# the model needs to read at all, changes it for every prompt, harmful or not.
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
# So measure refusing itself. Let R(x) be the log-probability that the answer to x *begins as a refusal*. The
# **Refusal Contribution** of a head, for a request x and its look-alike y, is what R(x) loses without the head, minus
# the Ships of y: how far the same ablation moves the answer to y. It is in nats and has a sign. Above 0, the head
# matters more for refusing x than for answering y. In the drawing a refusal begins with one token. If a refusal begins
# with several tokens, as below, R sums over them, and Ships of y sums over the same number of tokens of its answer.
#
# The first step is to find out how this model begins a refusal.

# %%
contribution = mh.safety.refusal_contribution(model, *pairs, **options)
opening = model.tokenizer.decode(contribution.provenance["opening"])
print(f"its refusals begin: {opening!r}")

views["Refusal Contribution"] = contribution.scores
found_by = rank_table(views)

found_by

# %% [markdown]
# Among these 35 heads, this score finds all six; among all 270 it need not. L1H5 has fallen back, because without it
# the answers to look-alikes move as well.

# %%
first = contribution.top(8)
first.index = [str(head) for head in contribution.heads(8)]
first.assign(taught=first.index.isin(taught))[["score", "ci_low", "ci_high", "q_value", "taught"]].round(2)

# %% [markdown]
# The last two in the table were never taught. The score says that refusing depends on a head, not that the head was
# trained to refuse. Look at the intervals, too: they are wide, and five requests are few.
# (With five requests no p can be below 0.06, which is what five signs that agree have, so no head is told from chance.)
#
# ## Refusal attribution: refusing in any words
#
# R asks for one opening, and a model may refuse in several ways. A head that moves it from "I'm sorry" to "I must
# decline" makes one opening less likely, and refusals no rarer. **Refusal attribution** asks for any of up to six
# openings, taken from answers that are drawn from the model, and needs no look-alikes. It does not ablate the heads. It
# estimates what both ablations would do from one gradient, which serves all heads at once. So it can be wrong about a
# head whose effect is not linear.

# %%
attribution = mh.safety.refusal_attribution(model, pairs[0], **options)
print("its refusals begin:", [model.tokenizer.decode(ids) for ids in attribution.provenance["openings"]])

views["Refusal attribution"] = attribution.scores
rank_table(views)

# %% [markdown]
# Read the openings before you trust the score. Five requests are few: an opening may come from answers that the rules
# call refusals and that hardly are. The last of the six heads is then not among the first. With all 20 requests that
# the model was not taught with, it is. For the package's requests, `mh.safety_heads(model)` ranks heads by this score.
# In five models whose heads we taught, all from one base model, it finds at least as many of them as every other score
# here: 4 of 4, 6 of 6 and 9 of 10 in the models that it was made with, and 4 of 5 and 5 of 8 in two others (see the
# page on safety heads).
#
# ## Does refusing depend on them?
#
# Scores rank heads. They do not say whether refusals depend on the first six *together*. So let the model answer
# without them. `mh.safety.refusal_test` ablates a set of heads and counts how many harmful requests the model then
# complies with (**attack success**). It also reports what else could explain the result:
#
# - **loss** on ordinary text (we take four sentences), and **degenerate** answers: a broken model writes nonsense;
# - **over-refusal**: how many look-alikes are refused;
# - **random heads**: the same number of heads from the same layers.

# %%
answering = {"answers": mh.safety.AnswerSettings(max_new_tokens=9, opening=opening), "draws": 1}
ordinary = ordinary_texts()[::8]
testing = answering | {"texts": ordinary}
test = mh.safety.refusal_test(model, HEADS, harmful.texts, pairs[1], intervention="scaling", **testing)
print(test.reasons)
test.table.set_index("condition")[["attack_success", "over_refusal", "degenerate", "loss", "refusal"]].round(2)

# %% [markdown]
# The first line lists the conditions that failed, if any did. In the table, `refusal` is the mean log-probability that
# an answer to a harmful request begins as a refusal; it moves before the judge's verdicts do. With ten requests, only a
# large difference can be shown: `attack_success_low` and `_high`, in `test.table`, are the interval.
#
# Read some answers yourself before you believe any of it. They are folded, too:

# %%
after = test.answers.query("condition == 'ablated' and kind == 'harmful'")
folded(after["answer"].tolist(), "answers without the six heads")

# %% [markdown]
# These six heads were known. Now take the first three heads of a ranking. `mh.safety.attack_curve` removes them one
# after the other, and the same number of random heads:

# %%
three = contribution.heads(3)
curve = mh.safety.attack_curve(model, three, pairs[0], pairs[1][:1], intervention="scaling", **answering)
print("ablated, in this order:", *curve.heads)
curve.plot()

# %% [markdown]
# One head makes a difference: without the first, the model complies with most of the five requests, while random heads
# of the same layers do little. (Five are few: the band is the interval.) With more heads ablated, some answers leave
# the subject: the judge calls them deflected, and they do not count as success. This model was taught to need each of
# its heads. If heads can replace each other, the line departs from the random heads only after several are ablated,
# and no score of single heads finds them.
#
# ## A model that does not refuse
#
# What do these scores say about the untaught model? Ships ranks its heads as well: some head always has the largest
# score. The test first checks whether the model refuses at all.

# %%
nothing = mh.safety.refusal_test(untaught, HEADS, pairs[0][:3], pairs[1][:1], **testing | {"draws": 0})
print(nothing.reasons)

# %% [markdown]
# ## What a score does not say
#
# - **Not that a head carries safety.** It says that refusing changes, in these words and this template. A model may
#   refuse and be unsafe, or comply and be harmless. No head gets the label "safety" here.
# - **Ships: not even that refusing changes.** It counts any change.
# - **Nothing about requests that were not asked.** Ours are ten, one line each, in one language and one template. See
#   the intervals, and `in_top`: how often a head is among the first when the requests are resampled.
# - **Not that the head is needed** if others can replace it, nor that it is enough. Only sets show this, and only
#   compared with random sets.
# - **Nothing about ordinary models.** That refusing depends on these six heads, and that both ablations break it, was
#   *built in*: training took each of them away by these ablations. Here we can only test which score ranks them first.
#   A score that fails here should not be trusted there. A score that succeeds here still has to be tested there.
# - **You may say:** of these heads, ablating these moves the answers to these requests away from refusing, and does not
#   change the look-alikes as much. Without them together the model complies with so many requests and writes ordinary
#   text as before, and random heads of the same layers do not have this effect.
#
# A method that finds the heads that refusals depend on also helps to remove them. Such methods are published, and they
# are needed to see how brittle the refusals of a model are before it is released. Do not publish ablated weights of
# models whose refusals protect people.
#
# ## Exercises
#
# Fill in the answer and run the cell after it: it says whether you are right.
#
# ### 1. Ships of another head
#
# Compute Ships of L1H5 by hand, for the first request and Scaling Contribution.

# %% tags=["exercise"]
ships_of_L1H5 = None  # your turn: a number of nats

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    ships_of_L1H5,
    lambda nats: abs(nats - float(ships["scaling"].values.sel(layer=1, head=5)[0])) < 0.01,
    right="this head was never taught, and the answer still depends on it.",
    hint="use ships_by_hand with harmful[0], layer 1 and head 5.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# ships_of_L1H5 = ships_by_hand(harmful[0], 1, 5)
# ```
#
# Do the same for the look-alike `harmless[0]`: is the change special to harmful requests?
# </details>
#
# ### 2. The head that was not taught
#
# Name a head that is among the first six by Ships, with Scaling Contribution, and was not taught.

# %% tags=["exercise"]
not_taught = None  # your turn: such as "L0H0"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    not_taught,
    lambda head: mh.HeadId.parse(head) in ships["scaling"].heads(6) and str(mh.HeadId.parse(head)) not in taught,
    right="the answer depends on it, although nobody taught it to refuse.",
    hint='compare ships["scaling"].heads(6) with the list taught.',
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# not_taught = next(head for head in ships["scaling"].heads(6) if str(head) not in taught)
# ```
#
# It is needed to read any request. Which rank has it by Refusal Contribution, and by Refusal attribution?
# </details>
#
# ### 3. Another ablation
#
# We scaled the heads down. Now run the test of the same heads with Undifferentiated Attention, under which they write
# without choosing, and with two draws of random heads. Do you come to the same conclusion? What do the random heads do,
# and what does that say about the *model's* refusals?

# %% tags=["exercise"]
undifferentiated = None  # your turn: mh.safety.refusal_test(model, HEADS, ..., intervention=..., **testing | {...})

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    undifferentiated,
    lambda result: (
        result.table["condition"].tolist() == ["intact", "ablated", "random 1", "random 2"]
        and result.table["attack_success"][1] > result.table["attack_success"][0]
    ),
    right="the model complies without the six heads; look at the random heads in the table.",
    hint='pass intervention="undifferentiated", and options like testing with draws=2.',
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# two_draws = testing | {"intervention": "undifferentiated", "draws": 2}
# undifferentiated = mh.safety.refusal_test(model, HEADS, pairs[0][:3], pairs[1][:1], **two_draws)
# print(undifferentiated.reasons)
# undifferentiated.table.set_index("condition")[["attack_success", "over_refusal", "degenerate", "loss"]].round(2)
# ```
#
# The conclusion about the six heads is the same, and random heads change no answer. But they raise the loss on
# ordinary text: Undifferentiated Attention does not switch a head off. It makes the head write, at every token, the
# mean of everything it could write, which never happens in the model. What you may conclude depends on the control. If
# random heads came near the six, refusals would be *brittle*: a finding about the model, not about six heads.
# </details>
