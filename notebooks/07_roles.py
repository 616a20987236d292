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
# # Roles: does a task need this head?
#
# Patching asks what a head does for *one answer*, and a label says what its weights would do with *any word*. Here is a
# third question: does a *task* need this head, does the head hinder it, or is it irrelevant? Ablation asks this of one
# head at a time, while 269 others are in place and may do its work. So ask about all heads at once: give every head a
# gate, and let gradient descent find which gates should be open for the task. This is causal head gating (Nam et al.
# 2025).
#
# We gate heads by hand, fit all gates three times, derive a role for each head, check the roles on items that were not
# used for fitting, and compare them with ablation. The notebook takes about a minute on two cores that do nothing else,
# and longer on a busy or older machine. You should know attention heads and log-probabilities; no other notebook is
# needed. (A fit of few, large steps amplifies small differences. On another processor the numbers differ a little, and
# the conclusions should not.)

# %%
import numpy as np
import pandas as pd
import torch

import mechheads as mh

model = mh.load()

# %% [markdown]
# ## A task
#
# A **task** is a list of prompts, each with the target that should follow. Ours shows a pattern four times and asks for
# the fifth: `x^y^x` in half of the prompts and `x^y^y` in the others, with words drawn at random. No knowledge is
# needed. The model has to recognise which of the two words the examples repeat, and repeat the same one.

# %%
task = mh.gating.load_task("aba_abb", model=model, n=40)
train, test = task.split(0.6)
for i in (0, 1):
    print(f"{task.prompts[i]}  ->{task.targets[i]}\n")

log_p = mh.task_log_prob(model, test)
print(f"{len(train)} items to fit to, {len(test)} to look at afterwards; log p of their targets {log_p.mean():.2f}")

# %% [markdown]
# ## Gates by hand
#
# A **gate** is a number g between 0 and 1, one for each head. It multiplies the output of the head, its z, at all
# positions: 1 leaves the head as it is, 0 removes it. In TransformerLens this is one hook for each layer:

# %%
ids = test.items(range(6)).tokens(model).ids  # [item, pos]; the last token is the target


def log_p_under(gates):  # [layer, head] -> [item]
    def gate(z, hook):  # [item, pos, head, d_head]
        return z * gates[hook.layer()][:, None]

    hooks = [(f"blocks.{layer}.attn.hook_z", gate) for layer in range(model.n_layers)]
    logits = model.model.run_with_hooks(ids[:, :-1], fwd_hooks=hooks)
    return logits[:, -1].log_softmax(-1).gather(1, ids[:, -1:])[:, 0]


all_open = torch.ones(model.n_layers, model.n_heads, requires_grad=True)
intact = log_p_under(all_open)
intact.mean().backward()
slope = all_open.grad

with torch.no_grad():
    half_open = torch.rand(model.n_layers, model.n_heads, generator=torch.Generator().manual_seed(0))
    print(f"all open: {intact.mean():.2f}; gates drawn at random: {log_p_under(half_open).mean():.2f}")

# %% [markdown]
# With random gates the model no longer works, and no change of a single gate would repair it. But a single backward
# pass shows how log p changes with *each* gate, so we can follow the gradient. The weights stay as they are: only 270
# numbers are learnt.
#
# ## Three fits
#
# The gradient alone is not enough. If log p hardly changes with a gate, the gate stays where it began, and its value
# means nothing. So fit three times: freely, then with all gates **pulled open**, then with all gates **pulled shut**:
#
# ```text
# maximise   log p(target)  +  λ · mean over heads of logit,      g = sigmoid(logit)
#
# none       λ = 0, starting from gates drawn evenly between 0 and 1
# keep       λ > 0, starting where "none" ended:  the gates G⁺
# drop       λ < 0, starting where "none" ended:  the gates G⁻
# ```
#
# (A logit is pulled no further than +4 or −4.) If a gate is shut although it is pulled open, the task wants it shut. If
# it is open although it is pulled shut, the task wants it open. And if it follows the pull both times, the task does
# not depend on it.
#
# <div>
# <img width="760" alt="Three heads, each with two gates from 0 to 1. Needed: open when pulled open and when pulled
#   shut. Hinders: shut both times. Irrelevant: open when pulled open, shut when pulled shut."
#   src='data:image/svg+xml;charset=utf-8,
#   <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 224" font-family="system-ui, sans-serif" font-size="14">
#   <rect width="820" height="224" rx="10" fill="white"/>
#   <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
#   <path d="M0 0 8 4 0 8z" fill="rgb(110,118,130)"/></marker></defs>
#   <g font-weight="600"><text x="24" y="38" font-size="16">The task ...</text>
#   <text x="238" y="38">pulled open: G⁺</text><text x="424" y="38">pulled shut: G⁻</text>
#   <text x="610" y="38">so the head has</text></g>
#   <g stroke="rgb(110,118,130)" stroke-width="2" marker-end="url(%23tip)"><path d="M250 54 H350"/>
#   <path d="M536 54 H436"/></g>
#   <g stroke="rgb(200,206,214)" stroke-width="6" stroke-linecap="round"><path d="M240 90 H360"/>
#   <path d="M426 90 H546"/><path d="M240 135 H360"/><path d="M426 135 H546"/><path d="M240 180 H360"/>
#   <path d="M426 180 H546"/></g>
#   <g fill="rgb(31,111,180)"><circle cx="360" cy="90" r="9"/><circle cx="546" cy="90" r="9"/></g>
#   <g fill="rgb(197,48,48)"><circle cx="240" cy="135" r="9"/><circle cx="426" cy="135" r="9"/></g>
#   <g fill="rgb(190,140,0)"><circle cx="360" cy="180" r="9"/><circle cx="426" cy="180" r="9"/></g>
#   <text x="24" y="95">needs the head</text><text x="24" y="140">is hindered by it</text>
#   <text x="24" y="185">does not depend on it</text>
#   <g font-weight="600"><text x="610" y="95" fill="rgb(31,111,180)">facilitation = G⁻</text>
#   <text x="610" y="140" fill="rgb(197,48,48)">interference = 1 − G⁺</text>
#   <text x="610" y="185" fill="rgb(150,105,0)">irrelevance = G⁺ (1 − G⁻)</text></g>
#   <g fill="rgb(90,98,110)" font-size="12" text-anchor="middle"><text x="240" y="210">0, shut</text>
#   <text x="360" y="210">1, open</text><text x="426" y="210">0, shut</text><text x="546" y="210">1, open</text></g>
#   </svg>'>
# </div>
#
# `mh.fit_gates` does all three, for several random starts (`seeds`) at once. Its defaults are for real results: ten
# seeds, and up to 500 updates for each fit. To save time we take two seeds, few and large steps, four items in each
# step, and a stronger pull.

# %%
gates = mh.fit_gates(
    model,
    train,
    seeds=2,
    updates=(16, 9, 9),
    batch=4,
    fit=mh.gating.FitSettings(lr=(0.2, 0.1), lr_regularised=(0.8, 0.2), regularisation=1.0),
)
gates

# %% [markdown]
# **Look at the curves before anything else.** A fit whose loss did not fall says nothing about heads. With steps as
# large as these a seed can get stuck, with gates that stay shut or open.

# %%
losses = gates.losses.assign(seed=gates.losses["seed"].astype(str))
axes = {"x": "update", "y": "loss", "color": "seed", "facet_col": "fit", "log_y": True}
losses.plot(backend="plotly", kind="line", height=330, title="-log p of the targets, in nats", **axes)

# %%
ends = losses.groupby(["fit", "seed"], sort=False)["loss"].agg(lambda curve: curve.tail(5).mean()).unstack()
ends.round(2)

# %% [markdown]
# The random starts are bad, and every seed improves a lot in the free fit. The two pulled fits continue from there and
# end even lower. Either these gates suit the task, or they have overfitted to these items. The next section separates
# the two.
#
# ## Circuits, on items that were not fitted
#
# There is one gate for each head, and only 24 items to fit them to, so some of this is overfitting. Look at the other
# items, with the function from above. At the same time, take the heads that G⁻ left open in one seed, open them fully,
# shut all others, and see whether they can do the task *alone*.

# %%
keep, drop = gates["keep"], gates["drop"]  # G+ and G-, [seed, layer, head]


@torch.no_grad()
def on_test(gates):  # [layer, head] -> log p
    return float(log_p_under(torch.tensor(gates, dtype=torch.float32)).mean())


circuits = pd.DataFrame({"heads": (drop > 0.5).sum((1, 2)), "alone": [on_test(one) for one in drop > 0.5]})
circuits.insert(0, "G-", [on_test(one) for one in drop])
circuits.insert(0, "G+", [on_test(one) for one in keep])
always, any_ = (drop > 0.5).all(0), (drop > 0.5).any(0)
circuits.loc["in every seed"] = [np.nan, np.nan, always.sum(), on_test(always)]
circuits.loc["in any seed"] = [np.nan, np.nan, any_.sum(), on_test(any_)]
n_open = (drop > 0.5).sum((1, 2))
by_chance = np.prod(n_open / 270) * 270
print(f"intact model on these items: {log_p[:6].mean():.2f}")
print(f"in every seed: {always.sum()} heads; random sets of these sizes would share about {by_chance:.0f}")
circuits.round(2)

# %% [markdown]
# G⁺ and G⁻ are the gates as they were fitted. Here they do much worse than on the items of the fit (see the losses
# above), and clearly worse than the intact model: the gates overfitted. "Alone" are the heads that were left open and
# nothing else: the **circuit** that one fit found. The two circuits share more heads than random sets of their sizes
# would, but far from all. If there were only one circuit to find, they would share nearly all. The heads that both
# share cannot do the task alone. The heads that at least one of them kept come within a nat of the whole model.
#
# ## From gates to roles
#
# Now the formulas of the drawing, for each seed:

# %%
by_hand = {"facilitation": drop, "interference": 1 - keep, "irrelevance": keep * (1 - drop)}

roles = mh.head_roles(gates)
for role, values in by_hand.items():
    difference = abs(roles[role].values.transpose("prompt", ...).values - values).max()
    print(f"{role}: largest difference from the numbers by hand {difference:.0e}")
shares = roles.shares()
shares.round(2)

# %% [markdown]
# The table gives the share of heads that have a role, at 0.5 or more: in *every* seed (always), in *some* seed (any),
# and in one seed on average (mean). If the task could be done in a single way only, always and any would be equal. They
# are far apart. This is not a fault of our small fits: in the paper's Llama-3.2-1B, 1.2% of the heads facilitate syntax
# in all ten seeds, and 72% in at least one.
#
# `roles` holds a `HeadScores` for each role: the mean over seeds with its interval (with two seeds, their range), and
# each seed in `.values`. The map shows the means; hover to see a head and its range.

# %%
mh.plots.role_map(roles)

# %%
needed = roles["facilitation"].heads(6)
listed = pd.DataFrame({str(head): drop[:, head.layer, head.head] for head in needed}).T
listed.columns = [f"seed {seed}" for seed in gates.seeds]
listed.round(2)

# %% [markdown]
# The first heads are kept in both seeds. For heads further down, a mean hides how it came about: 0.5 may be a head that
# is kept in one seed of two, because in the other one another head does its work. It need not be a head that is half
# open. And L23H4, which carries the capitals in the other notebooks, has little facilitation and much irrelevance: it
# follows the pull both times. This task is not about countries.
#
# ## Are the roles right?
#
# We can test a claim about heads. Start from G⁺, take the first k heads of a role, and compare these heads *gated off*
# with the same heads *gated on*, on items that were not fitted. If the roles are right, the task gets worse without the
# facilitating heads, better without the interfering ones, and does not change without the irrelevant ones. Any model
# breaks if enough of it is removed, so heads in random order are shown for comparison.

# %%
curves = mh.gating.role_curve(model, test.items(range(6)), gates, counts=[0, 15, 30], draws=2)
curves.plot()

# %%
change = curves.table.pivot(index="k", columns="which", values="score")
change.round(2)

# %% [markdown]
# The random heads show what it costs to remove this many heads of any kind. A role whose line is within their band
# orders heads no better than chance. Here the facilitating heads cost more than both random draws, and the irrelevant
# heads change it by less than a nat. But six items are few. When this was written, the change without fifteen
# facilitating heads was −6.7 [−13.3, +1.0] nats, which includes 0; without thirty, −8.9 [−15.3, −3.0]. The
# interfering heads are unclear: depending on the processor, removing thirty of them helps, or costs as much as random
# ones. Fits as short as these do not show which heads hinder the task.
#
# ## Compared with ablation
#
# Are these just the heads that you find if you remove one at a time? `mh.gating.ablation_effects` measures the same log
# p with the z of one head set to zero and all others as they are. To save time we take every third head of the later
# half and two items. `compare` gives the correlation of two scores over the heads that both measured.

# %%
third = [(layer, head) for layer in range(15, model.n_layers) for head in range(layer % 3, model.n_heads, 3)]
effects = mh.gating.ablation_effects(model, test.items(range(2)), heads=third)
compared = roles["facilitation"].compare(effects)
compared

# %%
beside = pd.DataFrame(
    {
        "effect": effects.scores.values.ravel(),
        "facilitation": roles["facilitation"].scores.values.ravel(),
        "in every seed": always.ravel(),
    },
    index=[f"L{layer}H{head}" for layer in range(model.n_layers) for head in range(model.n_heads)],
).dropna()
beside.sort_values("effect").head(8).round(2)

# %% [markdown]
# An effect below 0 means that the head is needed, so facilitation and effect should correlate *negatively*. If they do
# so at all, it is only weakly: these are two different questions. If they disagree about a head, look for the reason.
# If gates need the head and ablation does not, it may be one of several that do the same, of which ablation removes
# only one at a time. If ablation needs it and gates do not, other heads may take over as soon as their gates adapt. And
# a correlation over all heads may be about depth alone, if both values rise or fall with the layer.
#
# ## What a role does not say
#
# - **Not how much.** Moving one logit from +4 to −4 is worth 8 λ / 270 to the pull, which is 0.03 nats with our λ = 1.
#   A head whose loss costs the task more stays open, however much more it is. Another λ sets another threshold, and so
#   does a larger model, with more heads in the mean.
# - **Not which head, from one seed.** There are several ways to do a task. *Always* counts the heads that all fits
#   kept, and *any* counts the heads that some fit kept. Two seeds are few: with a third, *always* can only fall and
#   *any* can only rise.
# - **Not what a head does.** A head of the first layers that the model needs for everything is needed by every task
#   (see exercise 3). Nor whether it acts alone: the gates are fitted together, and each fits the others.
# - **Not that an irrelevant head does nothing.** It is irrelevant to *this* task, with *these* other heads in place.
#   Without the others it may be needed.
# - **Not that the model is better without interfering heads.** These targets are likelier; other texts may suffer.
# - **Not that the head carries information.** g = 0 puts zeros where the model never has any. A head that writes the
#   same in every text can be needed by this measure. Mean ablation separates the two (`mh.gating.ablation_effects(...,
#   intervention="mean")`).
# - **You may say:** fitted to these items, with this λ, the gate of this head stayed open (or shut) whichever way it
#   was pulled, in so many of so many seeds. On other items, gating off such heads costs so many nats, and the same
#   number of random heads costs so many.
#
# `mh.fit_gates` with its defaults (`mh.settings(store="gates.ledger")` saves the progress), or `mechheads figure roles
# --data aba_abb --out roles`, does all of this in full. It needs a GPU, or a night on a CPU.
#
# ## Exercises
#
# Fill in the answer and run the cell after it: it says whether you are right.
#
# ### 1. One gate
#
# With all other gates open, by how much does the mean log p of the six items change if you shut the gate of L29H1?

# %% tags=["exercise"]
change_of_L29H1 = None  # your turn: a number of nats, from log_p_under

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
one_shut = torch.ones(model.n_layers, model.n_heads)
one_shut[29, 1] = 0
with torch.no_grad():
    true_change = float((log_p_under(one_shut) - intact).mean())
mh.testing.check_answer(
    change_of_L29H1,
    lambda nats: abs(float(nats) - true_change) < 0.01,
    right="this is what zero ablation of the head measures.",
    hint="make a tensor of ones [layer, head], set one entry to 0, and compare with intact.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# shut = torch.ones(model.n_layers, model.n_heads)
# shut[29, 1] = 0
# with torch.no_grad():
#     change_of_L29H1 = float((log_p_under(shut) - intact).mean())
# ```
#
# Compare it with the facilitation of the head: ablation removes it while all others are in place.
# </details>
#
# ### 2. One seed of two
#
# Name a head whose gate G⁻ (`drop`) is above 0.5 in one seed, but not in the other.

# %% tags=["exercise"]
in_one_seed = None  # your turn: such as "L0H0"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    in_one_seed,
    lambda name: 0 < (drop[:, mh.HeadId.parse(name).layer, mh.HeadId.parse(name).head] > 0.5).sum() < len(gates.seeds),
    right="one fit would have given this head a role, or none, by the luck of its start.",
    hint="drop is [seed, layer, head]; the arrays any_ and always say where the seeds agree.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# in_one_seed = tuple(np.argwhere(any_ & ~always)[0].tolist())
# ```
#
# Many heads are of this kind.
# </details>
#
# ### 3. Needed for what?
#
# Ten heads facilitate. Do they work for *this* task, or does the model need them for everything? Write another task
# that has nothing to do with patterns (three lines). Make a table of the mean log p of both tasks: a column for each
# task, named after it, and the rows `none`, `facilitation` (the ten most facilitating heads are off) and `irrelevance`
# (the ten most irrelevant heads are off).

# %% tags=["exercise"]
capital = dict(mh.Relation.load("country_to_capital").pairs)
countries = ["France", "Germany", "Spain", "Italy", "Japan", "Russia", "Austria", "Greece", "Norway", "Sweden"]

# your turn: mh.Task(prompts=[...], targets=[...], name=...),
# and mh.task_log_prob(model, ..., off=roles[...].heads(10)).mean()
table = None  # a pd.DataFrame

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    table,
    lambda frame: (
        list(frame.index) == ["none", "facilitation", "irrelevance"]
        and len(frame.columns) == 2
        and frame.loc["facilitation", "aba_abb"] < frame.loc["irrelevance", "aba_abb"]
    ),
    right="does the other task suffer without the facilitating heads, too?",
    hint="the rows differ only in off=; use [] for none.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# prompts = [f"The capital of {country} is" for country in countries]
# other = mh.Task(prompts, [f" {capital[country]}" for country in countries], name="capitals")
# off = {"none": []} | {role: roles[role].heads(10) for role in ("facilitation", "irrelevance")}
# rows = {
#     one.name: [mh.task_log_prob(model, one, off=heads).mean() for heads in off.values()]
#     for one in (test.items(range(8)), other)
# }
# table = pd.DataFrame(rows, index=list(off))
# table.round(2)
# ```
#
# If the capitals get worse as far as the pattern does, these heads are not special to patterns: the model needs them
# for everything. Fit and compare the roles of two tasks before you call a head a head *of* one of them.
# `mh.gating.contrast_gates(model, retain=..., forget=...)` looks for the difference directly: gates that keep one
# variant of a task and break the other.
# </details>
