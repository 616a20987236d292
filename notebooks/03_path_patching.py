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
# Activation patching shows *that* a head matters. It does not show how its output reaches the answer: directly through
# the logits, or through another head that passes it on? Path patching does. It changes the output of one head, the
# **sender**, and lets only one component, the **receiver**, see the change.
#
# We do it by hand, check that the package gives the same numbers, and draw a small map of the paths between the heads
# that find a capital. It takes about a minute on two cores that do nothing else, and longer on a busy or older machine.
# You should know activation patching, the topic of notebook 02.

# %%
import pandas as pd
import torch

import mechheads as mh
from mechheads.patching import side_by_side

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
# We start with what we know. Run the clean prompts with one head taken from the corrupted run (noising), and see how
# far the logit difference falls. Everything after the head reacts to the change, so this is the head's **total**
# effect, over all paths at once.

# %%
total = mh.activation_patch(model, pairs, direction="noising")
total.top(5, by="absolute")

# %% [markdown]
# Without the clean output of L23H4, more than ten logits are lost. But how does this output get from layer 23 to the
# logits? Six more layers of heads and seven MLPs are on the way.
#
# ## Two runs
#
# <div>
# <img width="760" alt="Path patching in two runs. In run 1 the sender has the z of the corrupted run, the other heads
#   are frozen, MLPs are recomputed, and the input of the receiver is recorded. In run 2, a clean run, the receiver gets
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
#   <text x="100" y="104" font-weight="600">receiver L29H1</text><text x="100" y="123">record its v, and stop</text>
#   <text x="305" y="180">MLPs</text><text x="305" y="199">recomputed</text>
#   <text x="210" y="412" fill="rgb(90,98,110)">residual stream</text></g>
#   <path d="M410 20 V410" stroke="rgb(215,219,224)"/>
#   <text x="440" y="32" font-weight="600" font-size="16">Run 2: what does the receiver do with it?</text>
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
#   <text x="636" y="104" font-weight="600">logits</text><text x="636" y="123">metric minus the clean metric</text>
#   <text x="636" y="412" fill="rgb(90,98,110)">residual stream</text></g></svg>'>
# </div>
#
# **Run 1** is the clean run, with the sender's z from the corrupted run. Every other head's z is *frozen*: it keeps the
# value of the clean run, so no other head can pass the change on. MLPs are recomputed. We record what then arrives at
# the receiver.
#
# **Run 2** is the clean run once more, and only the receiver gets the recorded input in place of its own. Everything
# after it is recomputed. The score is the metric of run 2 minus the metric of the clean run.
#
# If the receiver is the end of the residual stream, called `"final"`, run 2 has nothing left to do. The score is then
# what the sender itself adds to the logits, its **direct** effect.
#
# ## By hand: directly to the logits

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
def first_run(layer, head, record=()):
    frozen = [z.clone() for z in clean_z]
    frozen[layer][:, :, head] = corrupted_z[layer][:, :, head]
    hooks = list(record)
    for name, value in zip(at_z, frozen, strict=True):
        hooks.append((name, lambda z, hook, value=value: value))
    return model.model.run_with_hooks(clean, fwd_hooks=hooks)


clean_logits, clean_z = all_z(clean)
_, corrupted_z = all_z(corrupted)
direct_by_hand = logit_difference(first_run(23, 4)) - logit_difference(clean_logits)
print(direct_by_hand)

# %% [markdown]
# ## Every head, directly to the logits
#
# Now the same for all 270 senders. With frozen heads, no information moves between tokens. So the package computes only
# the last token, and only the MLP of each layer. This costs less than the sweep above, although by hand it takes the
# same number of runs.

# %%
direct = mh.path_patch(model, pairs, receivers="final")

ours = direct.values.sel(layer=23, head=4).values
print(f"largest difference from the numbers by hand: {abs(ours - direct_by_hand.numpy()).max():.0e} logits")


senders = ["L23H4", "L29H1", "L29H0", "L24H4", "L10H6", "L10H8"]
effects = side_by_side({"total": total, "direct": direct}, senders)
effects

# %% [markdown]
# - **L29H1 and L29H0** are in the last layer. No head comes after them, so the two effects are equal.
# - **L23H4** acts mostly directly. The rest goes through later heads.
# - **L10H6 and L10H8** have a total effect and almost no direct effect. They act through other heads.
#
# Total minus direct is what goes through other heads. Scores of the same heads on the same prompts can be subtracted,
# and the result has intervals of its own:

# %%
through_heads = total - direct
through_heads.plot(title="total minus direct effect")

# %% [markdown]
# ## MLPs: part of the path, or not?
#
# In run 1 the MLPs were recomputed: they read what the sender wrote, and their reaction counts as part of the sender's
# effect. With `mlps="frozen"` they too keep the values of the clean run, and only the one edge from the sender to the
# receiver is left.

# %%
edge = mh.path_patch(model, pairs, senders=senders[:4], mlps="frozen")
with_mlps = side_by_side({"recomputed": direct, "frozen": edge}, senders[:4])
with_mlps

# %% [markdown]
# More than half of the "direct" effect of L23H4 is the reaction of MLPs. Neither number is wrong. If you compare with a
# paper, check which one it reports; Wang et al. (2022) recompute the MLPs.
#
# ## Receivers
#
# A head has three inputs. Its **q** and **k** decide which tokens it attends to, and its **v** is what it copies from
# them. Each can be a receiver, such as `"L29H1.v"`. An MLP can be a receiver too: `"L29.mlp"`. By hand, for L23H4 and
# the v of L29H1:


# %%
@torch.no_grad()
def second_run(sender, layer, head):
    at_v = f"blocks.{layer}.attn.hook_v"  # [prompt, pos, key/value head, d_head]
    group = head // (model.n_heads // model.n_kv_heads)
    recorded = {}

    def record(v, hook):
        recorded["v"] = v.clone()

    def replace(v, hook):
        v = v.clone()
        v[:, :, group] = recorded["v"][:, :, group]
        return v

    def this_head_alone(z, hook):
        new = clean_z[layer].clone()
        new[:, :, head] = z[:, :, head]
        return new

    first_run(*sender, record=[(at_v, record)])
    hooks = [(at_v, replace), (at_z[layer], this_head_alone)]
    return model.model.run_with_hooks(clean, fwd_hooks=hooks)


to_v_by_hand = logit_difference(second_run((23, 4), 29, 1)) - logit_difference(clean_logits)
to_v = mh.path_patch(model, pairs, receivers="L29H1.v", senders="L23H4")
print(f"by hand {float(to_v_by_hand.mean()):.3f}, with mechheads {to_v['L23H4']['score']:.3f} logits")

# %% [markdown]
# One thing took an extra line: this model has grouped-query attention, in which three heads share one v. The receiver
# is L29H1 alone, so the other heads of its layer keep their clean z.
#
# ## A map of the paths
#
# `mh.path_matrix` takes many senders and many receivers, and measures each receiver on its own.

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
)
matrix.plot()

# %% [markdown]
# A dot means that the family p is at most 0.05: there is *some* effect, not a large one. Row by row:
#
# - **L10H6 and L10H8** write to the v of L23H4, and hardly to the other receivers. They write on the country's token,
#   and L23H4 carries the result to the last token.
# - **L23H4** writes to the v of L29H1, which adds to the same answer (blue: without this path, logits are lost), and to
#   the v of L29H0, which lowers this answer (red). The columns of q and k stay pale: none of these heads changes *what*
#   L29H0 and L29H1 attend to.
# - **L23H0, L23H1 and L23H5** act in the same direction as L23H4; **L23H3 and L24H4** act in the opposite direction.
#
# ## Three things to keep in mind
#
# **Self-repair.** L29H0 lowers the right answer. Without L23H4 it lowers the answer less, which makes up for a part of
# the loss. A total effect is what is left after such repairs, so a head may matter more than its ablation shows. Put
# the two effects side by side, as above, before you call a head unimportant.
#
# **Paths do not add up.** Each receiver is measured while all others stay unchanged. Changed together, they interact
# through norms and through each other's inputs. A list of receivers replaces them together:

# %%
mlps = [f"L{layer}.mlp" for layer in range(23, model.n_layers)]
values = ["L29H0.v", "L29H1.v"]
options = {"senders": "L23H4"}
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
print(alone.round(2).to_string())
sums.round(2)

# %% [markdown]
# The MLP of layer 23 changes the input of the MLPs after it. Their reaction is counted once for layer 23, and again
# when each of them is the receiver. So the sum counts the same effect several times.
#
# **You choose the definition.** You decide which run is the base (`direction="noising"` or `"denoising"`), whether MLPs
# are part of the path (`mlps=`), and at which tokens the sender changes (`positions=`). Also, the sender's z from the
# corrupted run contains everything that reached the sender there: path patching isolates the path from the sender to
# the receiver, not the paths to the sender. State your choices when you report results.
#
# ## What you may conclude, and what not
#
# - **You may say:** in prompts like these, L10H6 reaches the answer only through other heads, above all through the v
#   of L23H4. The output of L23H4 reaches the logits mostly directly and through MLPs.
# - **Not:** "this is the circuit." We looked at a few senders and receivers. If a receiver is not in your list, its
#   path is not zero, it is unknown.
# - **Not:** "L10H6 is where the country comes from." Exercise 1 shows why.
#
# ## Exercises
#
# Fill in the answer and run the cell after it: it says whether you are right.
#
# ### 1. What does L23H4 read?
#
# Try all heads of layers 5 to 12 as senders to `"L23H4.v"`. Do they account for the effect of L23H4? Answer with the
# head that has the largest effect, and think about the sum before you open the solution.

# %% tags=["exercise"]
early = [(layer, head) for layer in range(5, 13) for head in range(model.n_heads)]

# your turn: mh.path_patch(model, pairs, receivers=..., senders=...)
largest_sender = None  # such as "L5H0"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    largest_sender,
    lambda head: mh.HeadId.parse(head) == mh.HeadId(10, 6),
    right="and yet it moves far fewer logits than L23H4 does.",
    hint='use receivers="L23H4.v" and senders=early, and sort by absolute score.',
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# to_value = mh.path_patch(model, pairs, receivers="L23H4.v", senders=early)
# largest_sender = to_value.heads(1, by="absolute")[0]
# print(largest_sender, to_value[largest_sender]["score"], "sum of all:", float(to_value.scores.sum()))
# ```
#
# No, they do not account for it. The largest of these 72 heads is L10H6, L10H8 acts against it, and the sum is close to
# 0. Heads carry information from token to token, but the country is on that token already. So L23H4 probably reads the
# token's own embedding and MLPs there, which a search among heads does not include; nor did we try the heads of layers
# 0 to 4 and 13 to 22.
# </details>
#
# ### 2. What share goes through one path?
#
# Which share of the total effect of L10H6 goes through the v of L23H4? Divide the score of that path by the total
# effect.

# %% tags=["exercise"]
share = None  # your turn: a number, from matrix["L10H6"] and total["L10H6"]

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
one_path = matrix["L10H6"].set_index("receiver")["score"]["L23H4.v"]
mh.testing.check_answer(
    share,
    lambda number: abs(number - one_path / total["L10H6"]["score"]) < 0.03,
    right="the rest goes through other heads, which we did not list as receivers.",
    hint='the path is in the row of matrix["L10H6"] with the receiver "L23H4.v".',
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# through_value = matrix["L10H6"].set_index("receiver")["score"]["L23H4.v"]
# share = through_value / total["L10H6"]["score"]
# ```
#
# Shares of different paths need not add up to 1, because paths do not add up.
# </details>
#
# ### 3. The other direction
#
# Measure the direct effect of L29H0 by denoising: the corrupted run is the base, and the path comes from the clean run.
# How many logits is it? L29H0 lowers the right answer, so think of the sign first.

# %% tags=["exercise"]
denoised = None  # your turn: a number of logits

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    denoised,
    lambda logits: (
        abs(logits - mh.path_patch(model, pairs, senders="L29H0", direction="denoising")["L29H0"]["score"]) < 0.1
    ),
    right="restored in the corrupted run, L29H0 lowers the right answer, as expected.",
    hint='use mh.path_patch with senders="L29H0" and direction="denoising"; receivers stays "final".',
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# other_way = mh.path_patch(model, pairs, senders="L29H0", direction="denoising")
# denoised = other_way["L29H0"]["score"]
# ```
#
# The sign changes: noising removes the head's contribution, and denoising adds it.
# </details>
