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
# # Path patching from first principles
#
# Activation patching tells *that* a head matters. It does not tell whom the head speaks to: straight to the logits, or
# to another head that passes it on? Path patching does. It changes what one head, the **sender**, says, and lets only
# one listener, the **receiver**, hear the change.
#
# We do it by hand, see that the package gives the same numbers, and then draw a small map of who speaks to whom in the
# heads that find a capital. It takes about a minute without a GPU. You should know activation patching, from the
# notebook before this one.

# %%
import pandas as pd
import torch

import mechheads as mh

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

# %% [markdown]
# ## The total effect
#
# First what we know already. Run the clean prompts with one head taken from the corrupted run (noising), and see how
# far the logit difference falls. All that comes after the head hears of it and reacts; so this is the head's **total**
# effect, over all paths at once.

# %%
total = mh.activation_patch(model, pairs, direction="noising", progress=False)
print(total.top(5, by="absolute").round(2).drop(columns=["layer", "head"]).to_string())

assert total.heads(1, by="absolute") == (mh.HeadId(23, 4),)
assert abs(total["L23H4"]["score"] + 14.0) < 0.2

# %% [markdown]
# Without what L23H4 says of the right country, 14 logits are lost. But how does it get from layer 23 to the logits?
# There are six more layers of heads, and seven MLPs, on the way.
#
# ## Two runs
#
# <div>
# <img width="760" alt="Path patching in two runs. In run 1 the sender has the z of the corrupted run, the other heads
#   are frozen, MLPs are recomputed, and the input of the receiver is noted. In run 2, a clean run, the receiver gets
#   that input, and all that follows is recomputed." src='data:image/svg+xml;charset=utf-8,
#   <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 430" font-family="system-ui, sans-serif" font-size="14">
#   <rect width="820" height="430" rx="10" fill="white"/>
#   <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
#   <path d="M0 0 8 4 0 8z" fill="rgb(110,118,130)"/></marker>
#   <marker id="hot" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto">
#   <path d="M0 0 8 4 0 8z" fill="rgb(214,108,16)"/></marker></defs>
#   <text x="24" y="32" font-weight="600" font-size="16">Run 1: what would reach the receiver?</text>
#   <text x="24" y="53" fill="rgb(90,98,110)">clean prompts, and every head frozen but one</text>
#   <g fill="none" stroke="rgb(110,118,130)" stroke-width="2">
#   <path d="M210 392 V262"/><path d="M168 337 H206" marker-end="url(%23tip)"/></g>
#   <g fill="none" stroke="rgb(214,108,16)" stroke-width="3">
#   <path d="M168 262 H210 V108 H178" marker-end="url(%23hot)"/>
#   <path d="M210 196 H238" marker-end="url(%23hot)"/><path d="M238 172 H216" marker-end="url(%23hot)"/></g>
#   <path d="M168 184 H206" fill="none" stroke="rgb(110,118,130)" stroke-width="2" marker-end="url(%23tip)"/>
#   <g fill="rgb(241,243,245)" stroke="rgb(150,158,168)">
#   <rect x="24" y="312" width="144" height="50" rx="7"/><rect x="24" y="159" width="144" height="50" rx="7"/></g>
#   <rect x="24" y="237" width="144" height="50" rx="7" fill="rgb(250,214,178)" stroke="rgb(214,108,16)"/>
#   <rect x="24" y="83" width="152" height="50" rx="7" fill="none" stroke="rgb(214,108,16)" stroke-width="2"
#    stroke-dasharray="5 4"/>
#   <rect x="240" y="159" width="130" height="50" rx="7" fill="rgb(216,231,245)" stroke="rgb(59,130,196)"/>
#   <g text-anchor="middle"><text x="96" y="333">heads before it</text>
#   <text x="96" y="352" fill="rgb(90,98,110)">frozen</text>
#   <text x="96" y="258" font-weight="600">sender L23H4</text><text x="96" y="277">z of corrupted run</text>
#   <text x="96" y="180">all other heads</text><text x="96" y="199" fill="rgb(90,98,110)">frozen</text>
#   <text x="100" y="104" font-weight="600">receiver L29H1</text><text x="100" y="123">note its v, and stop</text>
#   <text x="305" y="180">MLPs</text><text x="305" y="199">recomputed</text>
#   <text x="210" y="412" fill="rgb(90,98,110)">residual stream</text></g>
#   <path d="M410 20 V410" stroke="rgb(215,219,224)"/>
#   <text x="440" y="32" font-weight="600" font-size="16">Run 2: what does it make of that?</text>
#   <text x="440" y="53" fill="rgb(90,98,110)">clean prompts, and one input replaced</text>
#   <path d="M636 392 V240" fill="none" stroke="rgb(110,118,130)" stroke-width="2"/>
#   <g fill="none" stroke="rgb(214,108,16)" stroke-width="3">
#   <path d="M592 240 H636 V138" marker-end="url(%23hot)"/>
#   <path d="M636 206 H664" marker-end="url(%23hot)"/><path d="M664 182 H642" marker-end="url(%23hot)"/></g>
#   <rect x="440" y="312" width="356" height="50" rx="7" fill="rgb(241,243,245)" stroke="rgb(150,158,168)"/>
#   <rect x="440" y="215" width="152" height="50" rx="7" fill="rgb(250,214,178)" stroke="rgb(214,108,16)"/>
#   <rect x="666" y="169" width="130" height="50" rx="7" fill="rgb(216,231,245)" stroke="rgb(59,130,196)"/>
#   <rect x="506" y="83" width="260" height="50" rx="7" fill="rgb(216,231,245)" stroke="rgb(59,130,196)"/>
#   <g text-anchor="middle"><text x="618" y="333">all before the receiver</text>
#   <text x="618" y="352" fill="rgb(90,98,110)">as in the clean run</text>
#   <text x="516" y="236" font-weight="600">receiver L29H1</text><text x="516" y="255">v of run 1</text>
#   <text x="731" y="190">all that follows</text><text x="731" y="209">recomputed</text>
#   <text x="636" y="104" font-weight="600">logits</text><text x="636" y="123">metric less that of the clean run</text>
#   <text x="636" y="412" fill="rgb(90,98,110)">residual stream</text></g></svg>'>
# </div>
#
# **Run 1** is the clean run, with the sender's z from the corrupted one. Every other head's z is *frozen*: it is given
# the value that it has in the clean run, so no head can pass the news on. MLPs do run on. What then arrives at the
# receiver is noted.
#
# **Run 2** is the clean run once more, and only the receiver gets the noted input in place of its own. All that follows
# it is recomputed. The score is the metric of run 2 less that of the clean run.
#
# Where the receiver is the end of the residual stream itself, called `"final"`, run 2 has nothing left to do: the score
# is what the sender tells the logits by itself, the **direct** effect.
#
# ## By hand: straight to the logits

# %%
clean = torch.tensor(model.tokenizer(pairs.clean).input_ids)
corrupted = torch.tensor(model.tokenizer(pairs.corrupted).input_ids)
right = torch.tensor(model.tokenizer(pairs.answer).input_ids)[:, 0]
wrong = torch.tensor(model.tokenizer(pairs.wrong).input_ids)[:, 0]
at_z = [f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)]


def logit_difference(logits):  # [prompt, pos, d_vocab]
    row = torch.arange(len(logits))
    return logits[row, -1, right] - logits[row, -1, wrong]


@torch.no_grad()
def all_z(ids):  # logits, and for each layer [prompt, pos, head, d_head]
    logits, cache = model.model.run_with_cache(ids, names_filter=lambda name: name in at_z)
    return logits, [cache[name] for name in at_z]


@torch.no_grad()
def first_run(layer, head, notes=()):
    frozen = [z.clone() for z in clean_z]
    frozen[layer][:, :, head] = corrupted_z[layer][:, :, head]
    hooks = list(notes)
    for name, value in zip(at_z, frozen, strict=True):
        hooks.append((name, lambda z, hook, value=value: value))
    return model.model.run_with_hooks(clean, fwd_hooks=hooks)


clean_logits, clean_z = all_z(clean)
_, corrupted_z = all_z(corrupted)
by_hand = logit_difference(first_run(23, 4)) - logit_difference(clean_logits)
print(by_hand)

# %% [markdown]
# ## Every head, straight to the logits
#
# The same for all 270 senders. Frozen heads mean that no token hears of another, so the package computes the last token
# only, and of each layer only the MLP: this costs less than the sweep above, though by hand it is the same number of
# runs.

# %%
direct = mh.path_patch(model, pairs, receivers="final", progress=False)

ours = direct.values.sel(layer=23, head=4)
assert abs(ours - by_hand.numpy()).max() < 1e-3  # the same numbers as by hand


def side_by_side(senders, **results) -> pd.DataFrame:
    """The scores of the same heads in several results."""
    table = pd.DataFrame(index=senders)
    for name, scores in results.items():
        table[name] = [scores[head]["score"] for head in senders]
    return table


senders = ["L23H4", "L29H1", "L29H0", "L24H4", "L10H6", "L10H8"]
effects = side_by_side(senders, total=total, direct=direct)
of_others = effects["total"] - effects["direct"]
assert of_others[["L29H1", "L29H0"]].abs().max() < 1e-3
assert effects["direct"][["L10H6", "L10H8"]].abs().max() < 0.05
assert effects["total"].abs().min() > 0.5
effects.round(2)

# %% [markdown]
# - **L29H1 and L29H0** sit in the last layer. No head comes after them, so both effects are one.
# - **L23H4** loses 14 logits in all and 11.8 of them directly. The rest goes by way of later heads.
# - **L10H6 and L10H8** have a total effect and next to no direct one. Whatever they say, they say it to other heads.
#
# Total less direct is what goes by way of other heads. Scores of the same heads on the same prompts can be subtracted,
# and their intervals are worked out anew:

# %%
by_way_of_heads = total - direct
top = by_way_of_heads.heads(3, by="absolute")
assert [str(head) for head in top] == ["L23H4", "L10H6", "L10H8"]
by_way_of_heads.plot(title="total less direct effect")

# %% [markdown]
# ## MLPs: part of the path, or not?
#
# In run 1 the MLPs were recomputed: they read what the sender wrote, and what they make of it counts as the sender's.
# With `mlps="frozen"` they too keep the values of the clean run, and nothing is left but the one edge from the sender
# to the receiver.

# %%
edge = mh.path_patch(model, pairs, senders=senders[:4], mlps="frozen", progress=False)
with_mlps = side_by_side(senders[:4], recomputed=direct, frozen=edge)
assert with_mlps.loc["L23H4", "frozen"] / with_mlps.loc["L23H4", "recomputed"] < 0.5
with_mlps.round(2)

# %% [markdown]
# More than half of what L23H4 "says directly" is said by MLPs that it set off. Neither number is wrong. When you
# compare with a paper, look which one it means; Wang et al. (2022) recompute.
#
# ## Receivers
#
# A head hears through three ears. Its **q** decides what it looks for, its **k** what it is found by, its **v** what it
# hands on. Each is a receiver: `"L29H1.v"`. An MLP is one too: `"L29.mlp"`. By hand, for L23H4 and the v of L29H1:


# %%
@torch.no_grad()
def second_run(sender, layer, head):
    at_v = f"blocks.{layer}.attn.hook_v"  # [prompt, pos, key/value head, d_head]
    group = head // (model.n_heads // model.n_kv_heads)
    noted = {}

    def note(v, hook):
        noted["v"] = v.clone()

    def replace(v, hook):
        v = v.clone()
        v[:, :, group] = noted["v"][:, :, group]
        return v

    def this_head_alone(z, hook):
        new = clean_z[layer].clone()
        new[:, :, head] = z[:, :, head]
        return new

    first_run(*sender, notes=[(at_v, note)])
    hooks = [(at_v, replace), (at_z[layer], this_head_alone)]
    return model.model.run_with_hooks(clean, fwd_hooks=hooks)


by_hand = logit_difference(second_run((23, 4), 29, 1)) - logit_difference(clean_logits)
to_v = mh.path_patch(model, pairs, receivers="L29H1.v", senders="L23H4", progress=False)
print(f"by hand {float(by_hand.mean()):.3f}, by mechheads {to_v['L23H4']['score']:.3f} logits")

assert abs(to_v.values.sel(layer=23, head=4) - by_hand.numpy()).max() < 1e-3

# %% [markdown]
# One thing took a line more: this model has grouped-query attention, where three heads share one v. The receiver is
# L29H1 alone, so the other heads of its layer get their clean z back.
#
# ## A map of who speaks to whom
#
# `mh.path_matrix` takes many senders and many receivers, each receiver on its own.

# %%
matrix = mh.path_matrix(
    model,
    pairs,
    senders=["L10H6", "L10H8", "L23H0", "L23H1", "L23H3", "L23H4", "L23H5", "L24H4"],
    receivers=[
        "L23H4.q",
        "L23H4.k",
        "L23H4.v",
        *[f"L29H{head}.{site}" for head in (0, 1) for site in "qkv"],
        "L29.mlp",
    ],
    progress=False,
)


def path(sender, receiver):
    return float(matrix.select(receiver=receiver)[sender]["score"])


assert path("L23H4", "L29H0.v") > 2 and path("L23H4", "L29H1.v") < -2
assert path("L10H6", "L23H4.v") < -0.5 < 0.4 < path("L10H8", "L23H4.v")
assert max(abs(path("L23H4", f"L29H{head}.{site}")) for head in (0, 1) for site in "qk") < 0.3
matrix.plot()

# %% [markdown]
# A dot says that the interval leaves out 0: that there is *something*, not that it is large. Row by row:
#
# - **L10H6 and L10H8** speak to the v of L23H4, and hardly to anyone else here. They write on the country's token, and
#   L23H4 carries it to the last one.
# - **L23H4** speaks to the v of L29H1, which repeats it (blue: without it, logits are lost), and to the v of L29H0,
#   which argues against it (red). The columns of q and k stay pale: nobody here tells them *where to look*.
# - **L23H0, L23H1 and L23H5** take the side of L23H4, **L23H3 and L24H4** the other.
#
# ## Three things to keep in mind
#
# **Self-repair.** L29H0 pushes the right answer down. Take L23H4 away, and it has less to push down: 2.3 logits come
# back. A total effect is what is left after such repairs, so a head may matter more than ablating it shows.
# `mh.self_repair` sets total and direct effect side by side, for every head.
#
# **Paths do not add up.** Each receiver is tried with all the others unchanged; put together they meet in norms and in
# each other's inputs. A list of receivers replaces them together:

# %%
mlps = [f"L{layer}.mlp" for layer in range(23, model.n_layers)]
values = ["L29H0.v", "L29H1.v"]
options = {"senders": "L23H4", "progress": False}
alone = mh.path_matrix(model, pairs, receivers=[*values, *mlps], **options)["L23H4"]
alone = alone.set_index("receiver")["score"]


def together(receivers):
    return mh.path_patch(model, pairs, receivers=receivers, **options)["L23H4"]["score"]


sums = pd.DataFrame(
    {
        "summed": [alone[values].sum(), alone[mlps].sum()],
        "replaced together": [together(values), together(mlps)],
    },
    index=["v of L29H0 and L29H1", "MLPs of layers 23 to 29"],
)
assert sums["summed"].iloc[1] < sums["replaced together"].iloc[1] - 2
print(alone.round(2).to_string())
sums.round(2)

# %% [markdown]
# The MLP of layer 23, tried alone, is heard by those after it, and these again are counted when their own turn comes.
#
# **It is a definition, and you choose it.** Which run is the base (`direction="noising"` or `"denoising"`); whether
# MLPs are part of the path; at which tokens the sender changes (`positions=`). And the sender's z from the corrupted
# run holds whatever *it* had heard there: path patching cuts the way onwards, not the way back. Say in your write-up
# which you chose.
#
# ## What you may conclude, and what not
#
# - **You may say:** in prompts like these, L10H6 reaches the answer only through other heads, above all the v of L23H4;
#   and what L23H4 says reaches the logits mostly directly and by MLPs.
# - **Not:** "this is the circuit." We looked at a few senders and receivers. Where a receiver is not in your list, its
#   path is not zero, it is unknown.
# - **Not:** "L10H6 is where the country comes from." See below.
#
# ## Exercise: who tells L23H4?
#
# L23H4 hands on 14 logits' worth. Try all the heads of layers 5 to 12 as senders to `"L23H4.v"`. Do they account for
# it?

# %%
early = [(layer, head) for layer in range(5, 13) for head in range(model.n_heads)]

# your turn: mh.path_patch(model, pairs, receivers=..., senders=..., progress=False)

# %% [markdown]
# <details><summary>One solution</summary>
#
# ```python
# told = mh.path_patch(model, pairs, receivers="L23H4.v", senders=early, progress=False)
# told.top(5, by="absolute")
# ```
#
# No: the largest is L10H6, with -0.67, and next to it stands L10H8, which pulls the other way. The sum over all of them
# is near 0. Heads carry things from token to token, and the country is on that token already: most of what L23H4 reads
# there comes from the token's own embedding and from the MLPs, which have no part in a search among heads.
# </details>
