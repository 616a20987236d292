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
# # What does a head do? Labels, and what they do not say
#
# Patching shows what a head does on *these prompts*. Its weights can be examined without any prompt: what would the
# head write if it read the word " France"? If it writes Paris for France and Madrid for Spain, it is tempting to label
# the head "capitals" and stop there. This method is called MAPS (Elhelo & Geva 2025). It labels all heads of a model in
# minutes.
#
# We do it by hand, find a head that gets its label by luck, test whether heads do in a text what their weights say, and
# test whether the model needs them. The notebook takes about a minute on two cores that do nothing else, and longer on
# a busy or older machine. You should know activation patching (notebook 02).

# %%
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from scipy import stats

import mechheads as mh

model = mh.load()

# %% [markdown]
# ## One row of M
#
# <div>
# <img width="760" alt="The token France goes through the embedding, the first MLP, W_V and W_O of head L23H4 and W_U,
#   and gives one number for each token. Layers 1 to 22, what the head looks at, and layers 24 to 29 are left out."
#   src='data:image/svg+xml;charset=utf-8,
#   <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 222" font-family="system-ui, sans-serif" font-size="14">
#   <rect width="820" height="222" rx="10" fill="white"/>
#   <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
#   <path d="M0 0 8 4 0 8z" fill="rgb(110,118,130)"/></marker></defs>
#   <g stroke="rgb(110,118,130)" stroke-width="2" marker-end="url(%23tip)">
#   <path d="M90 95 H110"/><path d="M176 95 H196"/><path d="M290 95 H404"/><path d="M532 95 H596"/>
#   <path d="M666 95 H686"/></g>
#   <g fill="rgb(241,243,245)" stroke="rgb(150,158,168)">
#   <rect x="20" y="70" width="70" height="50" rx="7" fill="white"/><rect x="112" y="70" width="64" height="50" rx="7"/>
#   <rect x="198" y="70" width="92" height="50" rx="7"/><rect x="598" y="70" width="68" height="50" rx="7"/></g>
#   <rect x="406" y="70" width="126" height="50" rx="7" fill="rgb(250,214,178)" stroke="rgb(214,108,16)"/>
#   <g fill="none" stroke="rgb(150,158,168)" stroke-dasharray="4 4">
#   <rect x="290" y="150" width="112" height="50" rx="7"/><rect x="413" y="150" width="112" height="50" rx="7"/>
#   <rect x="536" y="150" width="112" height="50" rx="7"/><path d="M346 150 V102"/><path d="M469 150 V126"/>
#   <path d="M566 150 V102"/></g>
#   <g text-anchor="middle"><text x="55" y="100" font-size="13">" France"</text><text x="144" y="100">W_E</text>
#   <text x="244" y="91">first MLP</text><text x="244" y="109" fill="rgb(90,98,110)" font-size="12">of layer 0</text>
#   <text x="469" y="91" font-weight="600">W_V W_O</text><text x="469" y="109" font-size="12">of L23H4</text>
#   <text x="632" y="100">W_U</text>
#   <g fill="rgb(90,98,110)" font-size="12">
#   <text x="346" y="171">layers 1 to 22</text><text x="346" y="188">left out</text>
#   <text x="469" y="171">where it looks</text><text x="469" y="188">left out</text>
#   <text x="592" y="171">layers 24 to 29</text><text x="592" y="188">left out</text></g></g>
#   <g><text x="696" y="50" fill="rgb(90,98,110)" font-size="12">a number each for</text>
#   <text x="696" y="74">" French"</text><text x="696" y="94" font-weight="600">" Paris" ?</text>
#   <text x="696" y="114">" table"</text><text x="696" y="134">and all others</text></g>
#   <text x="20" y="36" font-weight="600" font-size="16">From a word to tokens, by weights alone</text></svg>'>
# </div>
#
# The head reads a token with W_V and writes to the residual stream with W_O. W_U turns what is written into one number
# for each of the 49,152 tokens. All these numbers, for all tokens that the head could read, form a matrix M. We need
# one row of it. Heads above layer 0 never read a bare embedding, so the paper sends the word through the MLP of layer 0
# first. We do the same for now, and ask later whether it is right.
#
# Look at what the drawing leaves out. The rest of this notebook is about that.


# %%
@torch.no_grad()
def rows_of_M(words, layer, head):  # [word, d_vocab]
    ids = torch.tensor(model.tokenizer([f" {word}" for word in words]).input_ids)[:, 0]
    block = model.model.blocks[0]
    embedded = model.model.W_E[ids.to(model.device)]
    seen = block.mlp(block.ln2(embedded[None]))[0]
    return seen @ model.W_V[layer][head] @ model.W_O[layer][head] @ model.model.W_U


def top_tokens(row, k=10):
    return [model.tokenizer.decode([token]) for token in row.topk(k).indices.tolist()]


for country in ("France", "Spain", "Norway"):
    print(f"{country}: {top_tokens(rows_of_M([country], 23, 4)[0], 7)}")


# %% [markdown]
# For Spain, " Madrid" comes first. For France, a comment from Python code, the word itself and others come before "
# Paris". The weights are raw here, as in the paper: there is no norm between the head and W_U, so tokens with long
# columns in W_U often get large numbers. `norm="folded"`, the default of the package, includes the scales of the norms.
# This is one of several choices in the definition, and your numbers depend on them.
#
# ## A relation score
#
# One country proves little. A **relation** is a list of pairs of source and target. The score phi of a head is the
# share of pairs for which the target is among the k = 10 largest numbers in the row of the source. Only pairs in which
# both words are single tokens can be used.


# %%
def token_of(word):
    ids = model.tokenizer(f" {word}").input_ids
    return ids[0] if len(ids) == 1 else None


def single_tokens(relation):
    return [(s, t) for s, t in relation.pairs if None not in (token_of(s), token_of(t))]


capitals = mh.Relation.load("country_to_capital")
asked = single_tokens(capitals)
rows = rows_of_M([country for country, _ in asked], 23, 4)
target = torch.tensor([token_of(capital) for _, capital in asked], device=rows.device)
own = rows.gather(1, target[:, None])
ahead = (rows > own).sum(1)
hit = ahead < 10
by_hand = float(hit.float().mean())
print(f"{len(asked)} of {len(capitals.pairs)} pairs; {int(hit.sum())} are hit: phi {by_hand:.3f}")

# %% [markdown]
# `mh.relation_scores` does this for every head and relation. The package has many relations; we take four, and of two
# of them every fourth pair, to save time. `source="first_mlp"` and `norm="raw"` choose what the paper computes, which
# we have just done by hand.


# %%
def every(step, name):
    relation = mh.Relation.load(name)
    return replace(relation, pairs=relation.pairs[::step])


relations = [
    "country_to_capital",
    every(4, "noun_to_pronoun"),
    "adjective_to_comparative",
    every(4, "name_copying"),
]
paper = {"source": "first_mlp", "norm": "raw"}
phi = mh.relation_scores(model, relations, **paper)
of_capitals = phi.select(relation="country_to_capital")
print(f"L23H4: by hand {by_hand:.3f}, with mechheads {of_capitals['L23H4']['score']:.3f}")
of_capitals.top(5)

# %% [markdown]
# Four heads have a large phi, all in layer 23; the others have almost none. `phi.provenance["ledger"]` says which pairs
# were left out, and why. Keep in mind that phi is about short, common words: Ouagadougou is six tokens and was never
# tested.
#
# ## A head that gets its label by luck
#
# The paper says that a head implements a relation if phi is 0.15 or more. Here is such a head, for nouns and their
# pronouns (king, he; ship, it):

# %%
of_pronouns = phi.select(relation="noun_to_pronoun")
maps = mh.label_heads(phi, rule="maps")
print(f"L27H5: phi {of_pronouns['L27H5']['score']:.2f}, label {maps.of('L27H5')}")
for noun in ("king", "queen", "tables", "doctor"):
    print(f"{noun:7} {top_tokens(rows_of_M([noun], 27, 5)[0], 8)}")

# %% [markdown]
# It writes pronouns. But do they fit? It seems to raise pronouns of any kind. There are only four targets (he, she, it,
# they), so it is right now and then. How often would it be right by luck alone? **Shuffle the targets among the
# sources**, and count again.
#
# <div>
# <img width="760" alt="Two tables of five sources and five targets. Head A hits its own targets, 4 of 5,
#   where shuffled targets give 1.2. Head B raises he for every source: 2 of 5 on the diagonal, and 2 in any order."
#   src='data:image/svg+xml;charset=utf-8,
#   <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 290" font-family="system-ui, sans-serif" font-size="14">
#   <rect width="820" height="290" rx="10" fill="white"/>
#   <text x="24" y="32" font-weight="600" font-size="16">Head A: to each its own</text>
#   <text x="450" y="32" font-weight="600" font-size="16">Head B: always he</text>
#   <g fill="rgb(90,98,110)" font-size="13"><text x="24" y="53">phi 0.8</text><text x="450" y="53">phi 0.4</text></g>
#   <g transform="translate(94,92)"><g fill="rgb(250,214,178)"><rect width="80" height="60"/>
#   <rect x="80" y="60" width="40" height="30"/><rect x="120" y="90" width="40" height="30"/></g>
#   <path d="M0 0H200V150H0z M40 0V150 M80 0V150 M120 0V150 M160 0V150 M0 30H200 M0 60H200 M0 90H200 M0 120H200"
#    fill="none" stroke="rgb(176,184,194)"/>
#   <g fill="none" stroke="rgb(40,48,60)" stroke-width="2"><rect width="40" height="30"/>
#   <rect x="40" y="30" width="40" height="30"/><rect x="80" y="60" width="40" height="30"/>
#   <rect x="120" y="90" width="40" height="30"/><rect x="160" y="120" width="40" height="30"/></g>
#   <g text-anchor="end"><text x="-10" y="20">king</text><text x="-10" y="50">uncle</text>
#   <text x="-10" y="80">aunt</text><text x="-10" y="110">boys</text><text x="-10" y="140">ship</text></g>
#   <g text-anchor="middle"><text x="20" y="-9">he</text><text x="60" y="-9">he</text><text x="100" y="-9">she</text>
#   <text x="140" y="-9">they</text><text x="180" y="-9">it</text></g>
#   <g font-size="13"><text x="214" y="52">on the diagonal: 4</text><text x="214" y="74">shuffled: 1.2</text>
#   <text x="214" y="96">4 or more in 2 of</text><text x="214" y="114">120 orders: p 0.017</text></g></g>
#   <g transform="translate(520,92)"><g fill="rgb(250,214,178)"><rect width="80" height="150"/></g>
#   <path d="M0 0H200V150H0z M40 0V150 M80 0V150 M120 0V150 M160 0V150 M0 30H200 M0 60H200 M0 90H200 M0 120H200"
#    fill="none" stroke="rgb(176,184,194)"/>
#   <g fill="none" stroke="rgb(40,48,60)" stroke-width="2"><rect width="40" height="30"/>
#   <rect x="40" y="30" width="40" height="30"/><rect x="80" y="60" width="40" height="30"/>
#   <rect x="120" y="90" width="40" height="30"/><rect x="160" y="120" width="40" height="30"/></g>
#   <g text-anchor="end"><text x="-10" y="20">king</text><text x="-10" y="50">uncle</text>
#   <text x="-10" y="80">aunt</text><text x="-10" y="110">boys</text><text x="-10" y="140">ship</text></g>
#   <g text-anchor="middle"><text x="20" y="-9">he</text><text x="60" y="-9">he</text><text x="100" y="-9">she</text>
#   <text x="140" y="-9">they</text><text x="180" y="-9">it</text></g>
#   <g font-size="13"><text x="214" y="52">diagonal: 2</text><text x="214" y="74">shuffled: 2</text>
#   <text x="214" y="96">in any order:</text><text x="214" y="114">p 1</text></g></g>
#   <text x="24" y="275" fill="rgb(90,98,110)" font-size="13">orange: the target of this column is among the k largest
#    for the source of this row; framed: the pairs of the relation</text></svg>'>
# </div>
#
# Head B always raises "he" and hits two of five pairs. It still does after shuffling, because what it writes does not
# depend on the source. A head that knows the pairs loses its hits when the targets are shuffled. By hand, for L27H5:

# %%
nouns, pronouns = zip(*single_tokens(relations[1]), strict=True)
largest = rows_of_M(nouns, 27, 5).topk(10).indices.cpu().numpy()  # [source, 10]
targets = np.array([token_of(pronoun) for pronoun in pronouns])
hits = (largest[:, :, None] == targets).any(1)  # [source, target]
seen = np.diagonal(hits).sum()

rng, row = np.random.default_rng(0), np.arange(len(nouns))
shuffled = np.array([hits[row, rng.permutation(len(nouns))].sum() for _ in range(9999)])
p_by_hand = (1 + (shuffled >= seen).sum()) / (1 + len(shuffled))
print("targets:", dict(Counter(pronouns)))
print(f"hits: {seen} of {len(nouns)}; shuffled: {shuffled.mean():.1f}; p {p_by_hand:.2f}")


# %% [markdown]
# The hits are hardly more than shuffling gives, and p is far above 0.05. This head should have no label.
#
# We also have 270 heads and four relations, which makes 1,080 tests. Among so many, a p of 0.01 occurs about ten times
# by luck alone. So p becomes q, as in notebook 02: if we label all heads with q up to 0.05, at most one label in twenty
# is expected to be luck.

# %%
p = np.sort(phi.dataset["p_value"].values.ravel())
ratio = p * len(p) / np.arange(1, len(p) + 1)
q_by_hand = np.minimum.accumulate(ratio[::-1])[::-1]
q_of_package = np.sort(phi.dataset["q_value"].values.ravel())
print(f"largest difference of q by hand from the package: {abs(q_by_hand - q_of_package).max():.0e}")

labels = mh.label_heads(phi, floor=0.01)
columns = ["head", "relation", "phi", "null_phi", "p", "q", "is_evidence", "label"]
table = labels.table().query("relation == 'noun_to_pronoun'")[columns].set_index("head")
evidence = table.loc[["L26H2", "L25H2", "L25H0", "L27H5"]]
evidence.round(4)

# %% [markdown]
# L26H2 certainly is a pronoun head, but a good part of its phi is expected by luck (`null_phi`). Always read phi
# together with its null.
#
# `mh.label_heads` gives a category if q is at most 0.05 and phi exceeds its null by at least `floor`, 0.1 by default.
# Here we set it to 0.01, to see everything that is significant. The two rules differ in both directions:

# %%
pd.DataFrame({"rule of the paper": maps.counts(), "our rule": labels.counts()}).T

# %%
labels.plot(title="four relations, with a null")

# %% [markdown]
# Our rule drops L27H5, and adds heads whose effect is small but significant: L23H2 raises a few of the 72 comparatives,
# and luck gives almost none. **So read phi as well as the colour.** A label says that there is something, and phi says
# how much. This is why the usual floor is 0.1: smaller effects are listed in the table, but get no category.
#
# No head has the colour of Knowledge alone. All four heads that know capitals copy names too, and some of them do
# something to adjectives as well. A head can have several labels.


# %%
labels.table("L23H4", columns=["relation", "category", "phi", "null_phi", "q", "is_evidence"])

# %% [markdown]
# ## In a text
#
# So far, attention played no part. Does L23H4 write the capital in a *text*? Run a text, take what the head adds to the
# residual stream at the last token, and multiply it by W_U:

# %%
for text in ("The story of Spain contains", "The capital of Spain is"):
    written = model.cache([text]).result["L23H4"][0, -1]
    with torch.no_grad():
        print(f"{text!r}: {top_tokens(written.to(model.device) @ model.model.W_U, 6)}")

# %% [markdown]
# `mh.labels.dynamic_scores` does this for many sources, heads and texts. **With context** is what you just saw: the
# head attends as it does in the text. **Without context**, all of its attention is put on the source, which shows what
# it would write if it attended to the source. We take one text that does not ask for a capital, as the paper does, and
# one that does.

# %%
templates = ["The story of {source} contains", "The capital of {source} is"]
options = {"templates": templates, "min_pairs": 20}
dynamic = mh.labels.dynamic_scores(model, every(2, "country_to_capital"), **options)

in_text = pd.DataFrame(index=["L23H4", "L23H5", "L23H1", "L23H2", "L29H1"])
in_text["static"] = [of_capitals[head]["score"] for head in in_text.index]
for context in ("without", "with"):
    for name, template in zip(("story", "capital"), templates, strict=True):
        part = dynamic.select(template=template, context=context, relation="country_to_capital")
        in_text[f"{name}, {context}"] = [part[head]["score"] for head in in_text.index]
print(dynamic.dataset["n_pairs"].item(), "countries")

in_text.round(2)

# %% [markdown]
# - **L23H4** does in both texts what its weights say.
# - **L23H5** could, but in the story it attends to other tokens. If the text asks for the capital, it writes the
#   capital for some countries.
# - **L23H2** never does it here: its weights could, but its attention is on other tokens.
# - **L29H1** is the surprise. By this phi its weights know no capital, and with all attention on the country it would
#   hardly ever write one. Yet if the text asks for a capital, it writes the right one for most countries. It does not
#   read the country. It reads what other heads, above all L23H4, wrote at the last token (notebook 03 shows it).
#
# ## What does a head read?
#
# "Its weights know no capital": is that so? We gave L29H1 the output of the first MLP. What if it reads something else?
# There are two other candidates: the bare embedding, and the token **as the model carries it** to the layer of the
# head. For the latter, the model runs on " France" after one neutral word, and we take the residual stream at the input
# of the head. By default `mh.relation_scores` tries all three, and `reading` says which gave the largest phi:

# %%
asked_thrice = mh.relation_scores(model, "country_to_capital")
of_heads = mh.label_heads(asked_thrice).table().set_index("head")[["phi", "reading", "null_phi", "label"]]
for way in ("embedding", "first_mlp", "carried"):
    scores = asked_thrice.dataset[f"phi_{way}"].isel(relation=0).values
    of_heads[way] = [scores[mh.HeadId.parse(head).layer, mh.HeadId.parse(head).head] for head in of_heads.index]
of_heads = of_heads.loc[["L23H4", "L23H5", "L23H1", "L29H1", "L29H2"]]

of_heads.round(2)

# %% [markdown]
# Given the bare embedding, L29H1 writes the capital for most countries: in this reading, its weights do know. Given the
# country as the model carries it to layer 29, it does so for few.
#
# No single reading is right for all heads here, nor for all models: in the one other model that was tried,
# Gemma-3-270m, the first MLP shows none of the heads that carry the capitals. The best of three readings needs a
# stricter null, and gets one: each shuffle also takes its best reading. `label_heads` does all of this if you give it a
# model. We continue with the paper's reading.
#
# ## One number for all heads, and how sure it is
#
# The paper sums this up as a correlation between static and dynamic scores, over all heads and templates. Let us look
# at it, and compute its p value in the usual way.

# %%
one = dynamic.select(relation="country_to_capital", context="with")
y = one.scores.transpose("template", "layer", "head").values
x = np.broadcast_to(of_capitals.scores.values, y.shape)
names = [f"L{layer}H{head}" for _ in templates for layer, head in np.ndindex(y.shape[1:])]
points = pd.DataFrame({"by weights (phi)": x.ravel(), "in the text": y.ravel(), "head": names})
points["text"] = np.repeat(templates, len(points) // len(templates))
points.plot.scatter(
    x="by weights (phi)", y="in the text", color="text", hover_name="head", backend="plotly", template="plotly_white"
)

# %%
usual = stats.pearsonr(x.ravel(), y.ravel())
low, high = usual.confidence_interval()
print(f"with context: r {usual.statistic:.2f} [{low:.2f}, {high:.2f}], p {usual.pvalue:.0e}")
others = np.arange(model.n_layers) != 23
but_one = stats.pearsonr(x[:, others].ravel(), y[:, others].ravel())
print(f"without layer 23: r {but_one.statistic:.3f}")

# %% [markdown]
# The p is absurdly small. But if we leave out a single layer of thirty, the correlation is gone. Both numbers are
# correct, but the p answers the wrong question. It takes 540 points for 540 independent samples. But the second
# template asks the *same* heads again; the heads of a layer read the same residual stream, and here even share value
# matrices; and most of the points are at or next to (0, 0). Counting the same thing many times is called
# **pseudo-replication**.
#
# How far does the correlation move if each layer is left out once?

# %%
without = {
    layer: np.corrcoef(np.delete(x, layer, axis=1).ravel(), np.delete(y, layer, axis=1).ravel())[0, 1]
    for layer in range(model.n_layers)
}
pd.Series(without, name="r").sort_values().iloc[[0, 1, -2, -1]].rename_axis("layer left out").round(2)

# %% [markdown]
# One layer decides it: that layer knows capitals by its weights, so we have seen *one* case, and without it the
# correlation is gone. What we may say is in the scatter plot: most heads do neither, four know capitals by their
# weights, of which some do nothing in a text, and one does in a text what its weights do not say.
#
# ## Does the model need it?
#
# A head may write " Madrid" without any effect. `mh.labels.relation_evidence` writes prompts with worked examples,
# swaps the country, and patches one head at a time, as in notebook 02. How much of the difference between the two
# answers does the head restore in total (**total**), and how much by what it writes to the logits itself (**direct**)?

# %%
pair = mh.labels.few_shot_pairs(model, "country_to_capital", n=1, shots=1)
print(f"{pair.clean[0]}\n\nand the other run: ... {pair.corrupted[0].splitlines()[-1]}\n")

late = [(layer, head) for layer in range(20, 30) for head in range(model.n_heads)]
options = {"heads": late, "n": 12, "shots": 1}
causal = mh.labels.relation_evidence(model, "country_to_capital", **options)
causal.total.top(5, by="absolute")

# %% [markdown]
# If you pass this evidence to `label_heads`, the column `verdict` says whether weights and effect agree. The labels do
# not change.

# %%
labels = mh.label_heads(phi, floor=0.01, causal=causal)
judged = labels.table().query("relation == 'country_to_capital' and verdict != ''")
beside = judged.set_index("head")
beside[["phi", "total", "total_low", "total_high", "direct", "label", "verdict"]].round(2)

# %% [markdown]
# This agrees with what we saw in the texts. L23H4 and L23H5 have similar phi, but in these prompts L23H4 restores
# several times as much of the answer. The label of L23H2 is true, and the model does not use it here. L29H1 has no
# label in the paper's reading, and does about as much as L23H5. (A head that works *against* the answer, such as
# L29H0, gets no verdict.)
#
# Single heads do not show what the heads do together. So remove them one after the other, and see how often the model
# still names the capital. Random heads of the same layers show how much of the loss is general damage.

# %%
removal = mh.labels.cumulative_removal(model, "country_to_capital", of_capitals.heads(4), draws=3, n=16, shots=2)
print("removed, in this order:", *removal.heads)
accuracy = removal.table.pivot(index="k", columns="which", values="score")
accuracy.round(2)

# %% [markdown]
# Without L23H4, which restores most of the answer, the model still names most capitals. Without three of the heads it
# names few. The fourth head, L23H2, makes no further difference. Random heads of layer 23 matter much less. The list
# was made from weights alone, and the answers depend on its first three heads together.
#
# Sixteen prompts are few: the intervals are in `removal.table`. Use more, and give other relations as `controls=`, to
# see whether those suffer as well.
#
# ## What else?
#
# We tested for capitals and found capitals. What else does the head write? `mh.labels.salient_operations` tries all
# 49,152 tokens, and lists the tokens that the head amplifies most.

# %%
salient = mh.labels.salient_operations(model, "L23H4", n=10, top=4).set_index("token")
maps_to = salient["maps_to"]
maps_to.str.join("  ").to_frame()

# %% [markdown]
# Nations, and words related to them. Pasta leads to Italians, and " Pyth" leads to Python. This head seems to write
# *what is associated with a word*, most strongly if the word is about a place. A capital that belongs to a country is
# one case, the one for which we had a list. No relation of ours is called "associated words", so no label could say it.
#
# ## What a label does not say
#
# - **Not that the head attends to such words.** Phi does not include the attention pattern (L23H2).
# - **Not that the model needs it.** Patch the head, or remove it (L23H2 again).
# - **Not that a head without a label does nothing.** It may read something other than what you gave it (L29H1). And
#   there may be no list of pairs for what it does.
# - **Not how much.** A few of 72 pairs may be enough for a label (L23H2 and the adjectives). Read phi, its interval and
#   its null.
# - **Not what else it does.** A relation that was not tested is not absent, it is unknown.
# - **Not anything about long words.** The ledger says which pairs were never tested.
# - **You may say:** for this share of the words, the first MLP and the weights of this head put the target among the
#   ten largest numbers, and shuffled targets would give that share. In these texts the head does it too. And in these
#   prompts the answer depends on it by so much.
#
# ## Exercises
#
# Fill in the answer and run the cell after it: it says whether you are right.
#
# ### 1. Small but sure
#
# Name a head that our rule (`labels`) gives a category, and the rule of the paper (`maps`) does not.

# %% tags=["exercise"]
small_but_sure = None  # your turn: such as "L0H0"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    small_but_sure,
    lambda head: bool(labels.of(head)) and not maps.of(head),
    right="its phi is below 0.15, and yet shuffled targets almost never give as much.",
    hint="compare labels.of(head) and maps.of(head) for all heads.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# heads = [f"L{layer}H{head}" for layer in range(model.n_layers) for head in range(model.n_heads)]
# small_but_sure = next(head for head in heads if labels.of(head) and not maps.of(head))
# ```
#
# `labels.table(small_but_sure)` shows its phi and its null.
# </details>
#
# ### 2. Luck, by hand
#
# Repeat the shuffling by hand for L26H2. Which p do you get?

# %% tags=["exercise"]
p_of_L26H2 = None  # your turn: a number; start from rows_of_M(nouns, 26, 2)

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    p_of_L26H2,
    lambda p: p > 0 and abs(p - of_pronouns["L26H2"]["p_value"]) < 0.003,
    right="shuffled targets almost never give this many hits, so the head knows something about the pairs.",
    hint="copy the cell for L27H5, and change the layer and the head.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# ten_largest = rows_of_M(nouns, 26, 2).topk(10).indices.cpu().numpy()
# hits_26_2 = (ten_largest[:, :, None] == targets).any(1)
# of_shuffles = np.array([hits_26_2[row, rng.permutation(len(nouns))].sum() for _ in range(9999)])
# p_of_L26H2 = (1 + (of_shuffles >= np.diagonal(hits_26_2).sum()).sum()) / (1 + len(of_shuffles))
# ```
#
# With 9,999 shuffles, p cannot be smaller than 1/10,000.
# </details>
#
# ### 3. Write a relation
#
# A relation is a name, a category and a list of pairs. Write one that leads from a noun to its plural, and find its
# heads. You will find some, with q far below 0.05. Then look for other explanations: what *else* could make a head
# raise dogs when it reads dog? Write that as a second relation, score both together, and compare. What does L24H5 raise
# more often: the plural, or the noun itself?

# %% tags=["exercise"]
listed = """
dog cat tree house car book hand eye king queen ship river stone horse bird door road hill star
field table chair wall boy girl friend teacher farmer student planet island letter number window
garden bridge flower song game
"""
words = listed.split()

# your turn: mh.Relation(...), mh.Relation(...),
# and mh.relation_scores(model, [..., ...], **paper)
raised_more = None  # "plural" or "itself"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    raised_more,
    lambda answer: answer == "itself",
    right="it writes the word and all its forms; a head for the plural would not write the singular.",
    hint="the second relation has the pairs (word, word).",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# plural = mh.Relation("noun_to_plural", "Linguistic", [(word, f"{word}s") for word in words])
# itself = mh.Relation("noun_to_itself", "Algorithmic", [(word, word) for word in words])
# rivals = mh.relation_scores(model, [plural, itself], **paper)
# best = rivals.select(relation="noun_to_plural").heads(5)
# scores = pd.DataFrame({str(head): rivals[head].set_index("relation")["score"] for head in best}).T
# raised_more = "itself" if scores.loc["L24H5", "noun_to_itself"] > scores.loc["L24H5", "noun_to_plural"] else "plural"
# ```
#
# Most of the best heads raise the noun itself *more* often than its plural. They write the word and all related words:
# for river they write river, rivers and water. Shuffled targets do not exclude this, because " dogs" fits " dog" and no
# other word. The null accounts for luck. You have to think of rival explanations yourself.
# </details>
