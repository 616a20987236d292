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
# Patching asks what a head does on *these prompts*. Its weights can be asked without any prompt: what would it make of
# the word " France", wherever it came across it? If France gives Paris and Spain gives Madrid, we are tempted to write
# "capitals" on the head and go home. This is MAPS (Elhelo & Geva 2024), and it labels all heads of a model in minutes.
#
# We do it by hand; find a head that earns its label by luck; ask whether heads do in a text what their weights say; and
# ask whether the model needs them for it. It takes less than a minute without a GPU. You should know activation
# patching, from the second notebook.

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
# The head reads a token with W_V and writes to the residual stream with W_O; W_U turns what is written into one number
# for each of the 49,152 tokens. All of these numbers, for all tokens to read, are a matrix M, and we want one row of
# it. Heads above layer 0 never meet a bare embedding. The paper sends the word through the MLP of layer 0 first, and so
# do we, until we come to ask whether that is the right thing to give to a head.
#
# Look at what the drawing leaves out. That is where the rest of this notebook comes from.


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

assert top_tokens(rows_of_M(["Spain"], 23, 4)[0])[0] == " Madrid"
assert " Oslo" in top_tokens(rows_of_M(["Norway"], 23, 4)[0])
france = rows_of_M(["France"], 23, 4)[0]
paris = model.tokenizer(" Paris").input_ids[0]
assert int((france > france[paris]).sum()) == 18
assert top_tokens(france, 2) == [" noqa", " France"] and top_tokens(france)[9] == "Paris"

# %% [markdown]
# Spain gives " Madrid" first of all. France gives a comment from Python code, itself, and much else; " Paris" comes
# 19th ("Paris" without the space, another token, is tenth). The weights are raw, as in the paper: no norm stands
# between the head and W_U, so tokens with long columns in W_U come up easily. `norm="folded"`, the default of the
# package, takes the norms' scales in. It is one of several choices in the definition, and your number depends on them.
#
# ## A relation score
#
# One country is an anecdote. A **relation** is a list of pairs, and the score phi of a head is the share of them for
# which the target is among the k = 10 largest numbers of the source's row. Only pairs of which both words are single
# tokens can be asked.


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

assert (len(asked), len(capitals.pairs), int(hit.sum())) == (38, 138, 25)

# %% [markdown]
# `mh.relation_scores` does it for every head and relation. The package has twenty relations; we take four, and of two
# of them every fourth pair, to save time. `source="first_mlp"` and `norm="raw"` make it the paper's form, the one that
# we have just worked out by hand.


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
paper = {"source": "first_mlp", "norm": "raw", "progress": False}
phi = mh.relation_scores(model, relations, **paper)
of_capitals = phi.select(relation="country_to_capital")
print(of_capitals.top(5).round(3).drop(columns=["layer", "head"]).to_string())

assert abs(of_capitals["L23H4"]["score"] - by_hand) < 1e-6  # the same number as by hand
assert [str(head) for head in of_capitals.heads(4)] == ["L23H4", "L23H5", "L23H1", "L23H2"]
assert of_capitals.top(5)["score"].iloc[4] < 0.03
assert phi.provenance["ledger"]["country_to_capital"]["kept"] == 38

# %% [markdown]
# Four heads, all in layer 23, and then nothing. Which pairs were left out, and why, is in `phi.provenance["ledger"]`.
# Keep in mind that phi speaks of short, common words: Ouagadougou is six tokens, and was never asked.
#
# ## A head that earns its label by luck
#
# The paper says that a head implements a relation if phi is 0.15 or more. Here is one that does, for nouns and their
# pronouns (king, he; ship, it):

# %%
of_pronouns = phi.select(relation="noun_to_pronoun")
maps = mh.label_heads(phi, rule="maps")
print(f"L27H5: phi {of_pronouns['L27H5']['score']:.2f}, label {maps.of('L27H5')}")
for noun in ("king", "queen", "tables", "doctor"):
    print(f"{noun:7} {top_tokens(rows_of_M([noun], 27, 5)[0], 8)}")

assert maps.of("L27H5") == ("Linguistic",)

# %% [markdown]
# It writes pronouns. But I for a king, him for tables, and we for a doctor? It seems to like pronouns of any kind, and
# with only four targets (he, she, it, they) it is right now and then. How often, by luck alone? **Shuffle the targets
# among the sources**, and count again.
#
# <div>
# <img width="760" alt="Two tables of five sources and five targets. Head A hits its own targets, 4 of 5,
#   where shuffled targets give 1.2. Head B raises he for every source: 2 of 5 on the diagonal, and 2 in any order."
#   src='data:image/svg+xml;charset=utf-8,
#   <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 290" font-family="system-ui, sans-serif" font-size="14">
#   <rect width="820" height="290" rx="10" fill="white"/>
#   <text x="24" y="32" font-weight="600" font-size="16">Head A: gives each its own</text>
#   <text x="450" y="32" font-weight="600" font-size="16">Head B: always says he</text>
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
# A head that always says "he" hits two of five pairs, and shuffling cannot take that away from it, because it never had
# more. A head that knows loses by shuffling. By hand, for L27H5:

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

ours = of_pronouns["L27H5"]
null_phi = of_pronouns.dataset["null_phi"].sel(layer=27, head=5).item()
assert seen == 11 and len(nouns) == 64 and abs(ours["score"] - 11 / 64) < 1e-6
assert abs(null_phi - hits.mean()) < 1e-6  # the mean over all orders needs no draws
assert abs(p_by_hand - ours["p_value"]) < 0.02 and abs(ours["p_value"] - 0.20) < 0.02
assert abs(shuffled.mean() - 8.7) < 0.1

# %% [markdown]
# Eleven hits, where luck gives 8.7. One shuffle in five does as well. There is nothing to label.
#
# And there are 270 heads and four relations: 1,080 tests. Among so many a p of 0.01 turns up about ten times by luck
# alone. So p becomes q, as in the notebook on activation patching: label all heads with q up to 0.05, and at most one
# label in twenty is expected to be luck.

# %%
p = np.sort(phi.dataset["p_value"].values.ravel())
ratio = p * len(p) / np.arange(1, len(p) + 1)
q_by_hand = np.minimum.accumulate(ratio[::-1])[::-1]
np.testing.assert_allclose(q_by_hand, np.sort(phi.dataset["q_value"].values.ravel()))

labels = mh.label_heads(phi, floor=0.01)
columns = ["head", "relation", "phi", "null_phi", "p", "q", "is_evidence", "label"]
table = labels.table().query("relation == 'noun_to_pronoun'")[columns].set_index("head")
evidence = table.loc[["L26H2", "L25H2", "L25H0", "L27H5"]]
assert evidence["is_evidence"].tolist() == [True, True, True, False]
assert abs(evidence["null_phi"]["L26H2"] - 0.25) < 0.01
evidence.round(4)

# %% [markdown]
# L26H2 is a pronoun head, and no doubt about it; but of its 0.59 one had to expect 0.25 anyway. Never read phi without
# the column beside it.
#
# `mh.label_heads` gives a category where q is at most 0.05 and phi above the null by at least `floor`, which is 0.1 if
# you leave it out. Here it is 0.01, to see all that is sure. The two rules differ in both directions:

# %%
print(pd.DataFrame({"paper's": maps.counts(), "ours": labels.counts()}).T.to_string())

assert labels.of("L23H4") == ("Knowledge", "Algorithmic") and labels.of("L27H5") == ()
assert labels.counts()["Linguistic"] > 2 * maps.counts()["Linguistic"]
found = labels.table().query("is_evidence")
assert len(found[found["phi"] < 0.15]) > 15
assert all(len(labels.of(head)) > 1 for head in ("L23H1", "L23H2", "L23H4", "L23H5"))
labels.plot(title="four relations, with a null")

# %% [markdown]
# Ours takes L27H5 out, and brings in heads that do little, but surely: L23H2 raises six of 72 comparatives, where luck
# gives 0.1. **So read phi beside the colour.** A label says that there is something; phi says how much. That is why the
# usual floor is 0.1: what is below it is in the table, and in no category.
#
# Where is Knowledge? It has no colour of its own here. All four heads that know capitals copy names, too, and three of
# them do something to adjectives as well. Labels are no boxes that heads are sorted into.

# %%
assert labels.counts()["Knowledge"] == 4
assert [len(labels.of(head)) for head in ("L23H1", "L23H2", "L23H4", "L23H5")] == [3, 3, 2, 3]
small = found.query("head == 'L23H2' and relation == 'adjective_to_comparative'").iloc[0]
assert abs(small["phi"] - 6 / 72) < 1e-6 and 72 * small["null_phi"] < 0.1
labels.table("L23H4")[["relation", "category", "phi", "null_phi", "q", "is_evidence"]].round(3)

# %% [markdown]
# ## In a text
#
# So far no token was ever looked at. Does L23H4 write the capital in a *text*? Take one, and push what the head adds to
# the residual stream at the last token through W_U:

# %%
for text in ("The story of Spain contains", "The capital of Spain is"):
    written = model.cache([text]).result["L23H4"][0, -1]
    with torch.no_grad():
        print(f"{text!r}: {top_tokens(written.to(model.device) @ model.model.W_U, 6)}")

# %% [markdown]
# `mh.dynamic_scores` does that for many sources, heads and texts. **With context** is what you just saw: the head looks
# where it likes. **Without context** all of its attention is put on the source, so it is asked: if you looked there,
# what would you write? We take one text that does not ask for a capital, as the paper does, and one that does.

# %%
templates = ["The story of {source} contains", "The capital of {source} is"]
options = {"templates": templates, "min_pairs": 20, "progress": False}
dynamic = mh.dynamic_scores(model, every(2, "country_to_capital"), **options)

in_text = pd.DataFrame(index=["L23H4", "L23H5", "L23H1", "L23H2", "L29H1"])
in_text["static"] = [of_capitals[head]["score"] for head in in_text.index]
for context in ("without", "with"):
    for name, template in zip(("story", "capital"), templates, strict=True):
        part = dynamic.select(template=template, context=context, relation="country_to_capital")
        in_text[f"{name}, {context}"] = [part[head]["score"] for head in in_text.index]
print(dynamic.dataset["n_pairs"].item(), "countries")

assert dynamic.dataset["n_pairs"].item() == 23
assert in_text.loc["L23H4"].min() > 0.5
assert in_text.loc["L23H5", "story, without"] > 0.4 and in_text.loc["L23H5", "story, with"] == 0
assert in_text.loc["L23H5", "capital, with"] > 0.2
assert in_text.loc["L23H2", ["story, with", "capital, with"]].max() == 0
assert in_text.loc["L29H1", "static"] == 0 and in_text.loc["L29H1", "capital, without"] < 0.1
assert in_text.loc["L29H1", "capital, with"] > 0.7
in_text.round(2)

# %% [markdown]
# - **L23H4** does in every text what its weights say.
# - **L23H5** would, but in the story it looks elsewhere. Asked for the capital, it does in a quarter of the countries.
# - **L23H2** never does here: its weights can, its attention does not.
# - **L29H1** is the surprise. By this phi its weights know of no capital, and if it looked at the country it would
#   write one in 4%. Yet asked for a capital it writes the right one in 78%. It does not read the country. It repeats
#   what others, L23H4 first of all, have laid down at the last token: the notebook on path patching shows it.
#
# ## What is a head given?
#
# "Its weights know of no capital": is that so? We gave L29H1 what the first MLP makes of a country. What if it reads
# something else? Two other things are at hand: the bare embedding, and the token **as the model itself carries it** to
# the layer of the head. For that the model runs on " France" after one neutral word, and we take the residual stream
# that the head meets there. By default `mh.relation_scores` asks all three, and `reading` says which gave the most:

# %%
asked_thrice = mh.relation_scores(model, "country_to_capital", progress=False)
of_heads = mh.label_heads(asked_thrice).table().set_index("head")[["phi", "reading", "null_phi", "label"]]
for way in ("embedding", "first_mlp", "carried"):
    scores = asked_thrice.dataset[f"phi_{way}"].isel(relation=0).values
    of_heads[way] = [scores[mh.HeadId.parse(head).layer, mh.HeadId.parse(head).head] for head in of_heads.index]
of_heads = of_heads.loc[["L23H4", "L23H5", "L23H1", "L29H1", "L29H2"]]

assert of_heads.loc["L29H1", "first_mlp"] == 0 and of_heads.loc["L29H1", "embedding"] > 0.7
assert of_heads.loc["L29H1", "carried"] < 0.3
assert of_heads.loc["L23H4", "reading"] == "first_mlp" and of_heads.loc["L23H4", "carried"] > 0.5
assert (of_heads["label"] == "Knowledge").all()
of_heads.round(2)

# %% [markdown]
# Given the bare embedding, L29H1 writes the capital for three countries in four: fed in that way, its weights do know.
# Given the country as the model carries it up to layer 29, it does so for one in five.
#
# No one way of feeding a head is the right one for all heads, nor for all models: in Gemma 3 the first MLP shows none
# of the heads that carry the capitals. The best of three looks needs a stricter null, and it has one: each shuffle may
# take its best look, too. `label_heads` does all of that if you give it a model. We go on in the paper's form.
#
# ## One number for all heads, and how sure it is
#
# The paper sums this up as a correlation: static against dynamic score, over all heads and templates. Let us see what
# it looks like, and do what is usually done with it.

# %%
correlations = mh.score_correlations(phi, dynamic)
mh.plots.static_dynamic(phi, dynamic, correlations)

# %%
one = dynamic.select(relation="country_to_capital", context="with")
y = one.scores.transpose("template", "layer", "head").values
x = np.broadcast_to(of_capitals.scores.values, y.shape)

usual = stats.pearsonr(x.ravel(), y.ravel())
low, high = usual.confidence_interval()
print(f"with context: r {usual.statistic:.2f} [{low:.2f}, {high:.2f}], p {usual.pvalue:.0e}")
others = np.arange(model.n_layers) != 23
but_one = stats.pearsonr(x[:, others].ravel(), y[:, others].ravel())
print(f"without layer 23: r {but_one.statistic:.3f}")

assert abs(usual.statistic - 0.60) < 0.01 and low > 0.5 and usual.pvalue < 1e-50
assert abs(but_one.statistic) < 0.02
assert ((x < 0.05) & (y < 0.05)).sum() > 500

# %% [markdown]
# A p of 8e-55! And if we leave out a single layer of thirty, the correlation is gone. Both are right; the p answers a
# question that nobody has. It takes 540 points for 540 independent samples. But the second template asks the *same*
# heads again; heads of a layer read the same residual stream, and here even share value matrices; and more than 500 of
# the points lie at or next to (0, 0). Counting the same thing many times is called **pseudo-replication**.
#
# `mh.score_correlations` resamples whole layers and whole templates, and gives the correlation of each template too:

# %%
pooled = correlations.query("template == 'all'").set_index("context")
assert pooled.loc["with", "ci_low"] < 0.1 and pooled.loc["without", "ci_low"] < 0.1
assert abs(pooled.loc["with", "r"] - usual.statistic) < 1e-6
assert abs(pooled.loc["without", "r"] - 0.93) < 0.01
correlations.drop(columns="relation").round(2)

# %% [markdown]
# The intervals run from nothing to 0.7 and more. They are honest: one layer knows capitals by its weights, so we have
# seen *one* case. Of the draws for a single template, (29/30)^30 or 36% do not hold that layer, and find nothing. What
# we may say is in the scatter: made to look at the country (diamonds), the four heads do somewhat less than their phi
# says, and left to themselves (dots), some do nothing.
#
# ## Does the model need it?
#
# A head may write " Madrid" and never be heard. `mh.relation_evidence` writes prompts with worked examples, swaps the
# country, and patches one head at a time, as in the second notebook: how much of the difference between the two answers
# does the head bring back, in all (**total**) and by what it writes to the logits itself (**direct**)?

# %%
pair = mh.few_shot_pairs(model, "country_to_capital", n=1, shots=1)
print(f"{pair.clean[0]}\n\nand the other run: ... {pair.corrupted[0].splitlines()[-1]}\n")

late = [(layer, head) for layer in range(20, 30) for head in range(model.n_heads)]
options = {"heads": late, "n": 12, "shots": 1, "progress": False}
causal = mh.relation_evidence(model, "country_to_capital", **options)
print(causal.total.top(5, by="absolute").round(3).drop(columns=["layer", "head"]).to_string())

assert causal.total.heads(1) == (mh.HeadId(23, 4),)
assert causal.total["L29H0"]["score"].item() < -0.05

# %% [markdown]
# Given to `label_heads`, it stands beside the weights, with a verdict. It changes no label.

# %%
labels = mh.label_heads(phi, floor=0.01, causal=causal)
judged = labels.table().query("relation == 'country_to_capital' and verdict != ''")
beside = judged.set_index("head")
assert beside["verdict"].to_dict() == {
    "L23H1": "confirmed",
    "L23H2": "weights only",
    "L23H4": "confirmed",
    "L23H5": "confirmed",
    "L29H1": "in context only",
}
assert (beside["total"] - [0.13, 0.00, 0.60, 0.15, 0.16]).abs().max() < 0.01
beside[["phi", "total", "total_low", "total_high", "direct", "label", "verdict"]].round(2)

# %% [markdown]
# All that we saw in the texts is back. L23H4 and L23H5 have nearly the same phi, 0.66 and 0.61; in these prompts one
# restores 60% of the answer, and the other 15%. L23H2's label is true, and the model does not use it here. L29H1 has no
# label in the paper's form, and does as much as L23H5. (A head that works *against* the answer, as L29H0, gets no
# verdict.)
#
# One head at a time does not say what they do together. So take them away, one after the other, and see how often the
# model still names the capital. Heads taken at random from the same layers show how much of that is damage of any kind.

# %%
removal = mh.cumulative_removal(
    model,
    "country_to_capital",
    of_capitals.heads(4),
    most=4,
    draws=3,
    n=16,
    shots=2,
    progress=False,
)
print("removed, in this order:", *removal.heads)
accuracy = removal.table.pivot(index="k", columns="which", values="accuracy")
assert (16 * accuracy["relation"]).tolist() == [13, 10, 5, 2, 2]
assert (16 * accuracy.drop(columns="relation")).min().min() >= 11
accuracy.round(2)

# %% [markdown]
# The model gets 13 of 16 right, and without L23H4, which restored 60%, still ten. Without three of them it gets two.
# The fourth, L23H2, is missed by nobody. Random heads of layer 23 hardly matter. The list was made from weights alone,
# and together its first three heads are what these answers stand on.
#
# Sixteen prompts are few: the intervals are in `removal.table`. Ask for more, and give `controls=`, other relations, to
# see whether those suffer as well.
#
# ## What else?
#
# We asked for capitals and found capitals. What would the head say if we did not put words into its mouth?
# `mh.salient_operations` looks at all 49,152 tokens, and lists those that the head amplifies most.

# %%
salient = mh.salient_operations(model, "L23H4", n=10, top=4).set_index("token")
maps_to = salient["maps_to"]
assert {"' Italian'", "' pasta'", "' Pyth'"} <= set(maps_to.index)
assert "' Italians'" in maps_to["' pasta'"] and "' Python'" in maps_to["' Pyth'"]
assert "' Kiev'" in maps_to["' Slavic'"]
maps_to.str.join("  ").to_frame()

# %% [markdown]
# Nations, yes, and the words around them; of capitals only Kiev is to be seen, after Ivan and Helena. Pasta leads to
# Italians, and " Pyth" to Python. This head seems to hand on *what goes with a word*, and most strongly where the word
# is about a place. That a capital goes with a country is one case, and the one that we had a list for. No relation of
# ours is called "what goes with it", so no label could have said so.
#
# ## What a label does not say
#
# - **Not that the head attends to such words.** Phi leaves the pattern out (L23H2).
# - **Not that the model needs it.** Patch it, remove it (L23H2 again).
# - **Not that a head without a label does nothing.** It may read something else than what you gave it (L29H1). And for
#   what most heads do, nobody may have had a list.
# - **Not how much.** Six of 72 pairs may be evidence enough (L23H2 and the adjectives). Read phi, its interval, and the
#   null beside it.
# - **Not what else it does.** A relation that was not tested is not absent, it is unknown.
# - **Not anything about long words.** Ask the ledger which pairs were never tried.
# - **You may say:** pushed through the first MLP and this head's weights, these many of these words have their target
#   among the ten largest, where shuffled targets would give so many; in these texts it does so, too; and in these
#   prompts the answer hangs on it that much.
#
# ## Exercise: write a relation
#
# A relation is a name, a category and a list of pairs. Write one that leads from a noun to its plural, and find its
# heads. You will find some, with q far below 0.05. Then be your own worst critic: what *else* could make a head raise
# dogs when it reads dog? Write that as a second relation, score both together, and compare.

# %%
listed = """
dog cat tree house car book hand eye king queen ship river stone horse bird door road hill star
field table chair wall boy girl friend teacher farmer student planet island letter number window
garden bridge flower song game
"""
words = listed.split()

# your turn: mh.Relation(...), mh.Relation(...),
# and mh.relation_scores(model, [..., ...], **paper)

# %% [markdown]
# <details><summary>One solution</summary>
#
# ```python
# plural = mh.Relation("noun_to_plural", "Linguistic", [(word, f"{word}s") for word in words])
# itself = mh.Relation("noun_to_itself", "Algorithmic", [(word, word) for word in words])
# rivals = mh.relation_scores(model, [plural, itself], **paper)
# best = rivals.select(relation="noun_to_plural").heads(5)
# pd.DataFrame({head: rivals[head].set_index("relation")["score"] for head in best}).T
# ```
#
# L23H5 raises the plural of 23 of 39 nouns, and luck gives less than one. But 18 of these 23 nouns it raises as well:
# for a river it has river, rivers, water and flowing. The next three, L23H2, L24H5 and L23H0, raise the noun itself
# *more* often than its plural. They hand on the word with all its family; a head for the plural would leave the
# singular behind. Shuffled targets do not rule that out, as " dogs" goes with " dog" and with no other word. The null
# knows about luck. Rivals you have to think of yourself.
# </details>
