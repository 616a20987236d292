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
# # Does the task need this head? Roles
#
# Patching asks what a head does for *one answer*, and a label what its weights would do with *any word*. Here is a
# third question: does a *task* need this head, is it hindered by it, or does it not care? Ablation asks that of one
# head at a time, with 269 others in place that may step in. So ask all at once: give every head a gate, and let
# gradient descent find which gates the task wants open. This is causal head gating (Nam et al. 2025).
#
# We gate heads by hand; fit all gates, three times over; read a role for each head from them; check the roles on items
# that they were not fitted to; and see what they have to do with ablation, and what they do not say. It takes about two
# minutes without a GPU. You should know attention heads and log-probabilities; no other notebook is needed. (A fit of
# few, large steps carries a difference in the last bit far: on another processor the numbers below come out a little
# differently, and say the same.)

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
# the fifth: `x^y^x` in half of the prompts, `x^y^y` in the others, with words drawn at random. There is nothing to know
# here. The model has to see which of its two words was repeated, and to repeat one.

# %%
task = mh.load_task("aba_abb", model=model, n=40)
train, test = task.split(0.6)
for i in (0, 1):
    print(f"{task.prompts[i]}  ->{task.targets[i]}\n")

log_p = mh.task_log_prob(model, test, progress=False)
print(f"{len(train)} items to fit to, {len(test)} to look at afterwards; log p of their targets {log_p.mean():.2f}")

# %% [markdown]
# ## Gates by hand
#
# A **gate** is a number g between 0 and 1, one for each head. It multiplies what the head says, its z, at all
# positions: 1 leaves the head alone, 0 takes it out. With TransformerLens that is one hook a layer:

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

assert abs(intact.detach().numpy() - log_p[:6]).max() < 1e-3

# %% [markdown]
# With gates drawn at random the model is no longer a language model, and nothing that we do to one gate would mend it.
# But how log p changes with *each* gate a single backward pass tells, and where it goes up, one can climb. The weights
# stay as they are: 270 numbers are all that is learnt.
#
# ## Three fits
#
# Climbing alone is not enough. Where log p hardly changes, a gate stays wherever it began, and its value says nothing.
# So fit three times: freely, then with all gates **pulled open**, then with all gates **pulled shut**:
#
# ```text
# maximise   log p(target)  +  λ · mean over heads of logit,      g = sigmoid(logit)
#
# none       λ = 0, from gates drawn evenly between 0 and 1
# keep       λ > 0, on from where "none" ended:  the gates G⁺
# drop       λ < 0, on from where "none" ended:  the gates G⁻
# ```
#
# (A logit is pulled no further than +4 or −4.) A gate that is shut in spite of being pulled open is shut because the
# task wants it shut; a gate that is open in spite of being pulled shut, because the task wants it open. And one that
# goes wherever it is pulled is not wanted either way.
#
# <div>
# <img width="760" alt="Three heads, each with two gates from 0 to 1. Needed: open when pulled open and when pulled
#   shut. Hinders: shut both times. Nobody cares: open when pulled open, shut when pulled shut."
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
#   <text x="24" y="185">does not care</text>
#   <g font-weight="600"><text x="610" y="95" fill="rgb(31,111,180)">facilitation = G⁻</text>
#   <text x="610" y="140" fill="rgb(197,48,48)">interference = 1 − G⁺</text>
#   <text x="610" y="185" fill="rgb(150,105,0)">irrelevance = G⁺ (1 − G⁻)</text></g>
#   <g fill="rgb(90,98,110)" font-size="12" text-anchor="middle"><text x="240" y="210">0, shut</text>
#   <text x="360" y="210">1, open</text><text x="426" y="210">0, shut</text><text x="546" y="210">1, open</text></g>
#   </svg>'>
# </div>
#
# `mh.fit_gates` does all three, for several random starts (`seeds`) at once. Its defaults are for real results: ten
# seeds, up to 500 updates a fit. We have a minute, so we take three seeds, few and large steps, four items each, and a
# stronger pull.

# %%
gates = mh.fit_gates(
    model,
    train,
    seeds=3,
    updates=(20, 14, 14),
    batch=4,
    lr=(0.2, 0.1),
    lr_regularised=(0.5, 0.1),
    regularisation=1.0,
    progress=False,
)
gates

# %% [markdown]
# **Look at the curves before anything else.** A fit that did not come down tells nothing about heads. With steps as
# large as these it happens: a seed runs into a corner where gates are shut or open for good, and no slope leads out.

# %%
losses = gates.losses.assign(seed=gates.losses["seed"].astype(str))
axes = {"x": "update", "y": "loss", "color": "seed", "facet_col": "fit", "log_y": True}
losses.plot(backend="plotly", kind="line", height=330, title="-log p of the targets, in nats", **axes)

# %%
ends = losses.groupby(["fit", "seed"], sort=False)["loss"].agg(lambda curve: curve.tail(5).mean()).unstack()
begins = losses.query("fit == 'none' and update == 1")["loss"]
assert abs(begins - [8.2, 8.7, 9.7]).max() < 0.1
assert ends.loc[["keep", "drop"]].max().max() < 1.6 and ends.loc["none"].min() > 1.7
ends.round(2)

# %% [markdown]
# The three random starts cost 8 to 10 nats, and every seed climbs out of that, to about 2 at the end of the free fit.
# The intact model has 1.8 on these 24 items (and 0.9 on the others, by the luck of the draw). The two pulled fits go on
# from there, and end between 0.5 and 1.5: with these gates our targets are *likelier* than the model ever made them.
# Either heads that stood in the way are shut now, or these items have been learnt by heart. The next section tells the
# two apart.
#
# ## Circuits, on items that were not fitted
#
# There is a gate for every head and only 24 items to fit them to: some of this will be learnt by heart. So look at the
# other items, with the function from above. While we are at it: take the heads that G⁻ left open in one seed, open them
# all the way, shut all others, and see whether they can do the task *alone*.

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
n = (drop > 0.5).sum((1, 2))
assert n.min() > 90 and n.max() < 160
assert circuits["G+"].max() < log_p[:6].mean() - 1 and circuits.loc["in any seed", "alone"] > -1.5
assert 1.3 * np.prod(n / 270) * 270 < always.sum() < 0.7 * n.min() and any_.sum() > 1.3 * n.max()
circuits.round(2)

# %% [markdown]
# G⁺ and G⁻ are the gates as they were fitted. On the items they were fitted to they did better than the intact model;
# here, where it has −1.3, they come to −3 to −4: much was learnt by heart. "Alone" are the heads that were left open,
# and nothing else: the **circuit** that one fit found. The three have about 130 heads each, of 270, and nearly 60 heads
# are in all of them. Three sets of that size drawn at random would share about 30; if there were one circuit to be
# found, they would share nearly all. What they share does not do the task alone (−5 or less); all that any of them
# kept, some 200 heads, does it as well as the whole model.
#
# ## From gates to roles
#
# Now the formulas, for each seed:

# %%
by_hand = {"facilitation": drop, "interference": 1 - keep, "irrelevance": keep * (1 - drop)}

roles = mh.head_roles(gates)
for role, values in by_hand.items():
    np.testing.assert_allclose(roles[role].values.transpose("prompt", ...), values)
np.testing.assert_allclose(sum(by_hand.values()), 1 + drop * (1 - keep))
shares = roles.shares()
shares.round(2)

# %% [markdown]
# In the table: the share of heads that have a role, at 0.5 or more, in *every* seed (always), in *some* seed (any), and
# in one seed (mean). One fit says of nearly half of the heads that they facilitate; 21% do in all three, 75% in some.
# Of interference it is 10% and 57%. Were the task done in a single way, always and any would be the same. It is no
# accident of our small fits: in the paper's Llama-3.2-1B, 1.2% of the heads facilitate syntax in all ten seeds, and 72%
# in at least one.
#
# `roles` holds a `HeadScores` for each role: the mean over seeds with its interval, and in `.values` each seed. The map
# shows the means; hover for a head and its interval.

# %%
mh.plots.role_map(roles)

# %%
needed = roles["facilitation"].heads(6)
listed = pd.DataFrame({str(head): drop[:, head.layer, head.head] for head in needed}).T
listed.columns = [f"seed {seed}" for seed in gates.seeds]
assert all(roles["facilitation"][head]["score"] > 0.7 for head in ("L23H0", "L29H1"))
assert roles["facilitation"]["L23H4"]["score"] < 0.4 and roles["irrelevance"]["L23H4"]["score"] > 0.5
assert shares["any"].min() > 0.25 and shares["always"].max() < 0.35
listed.round(2)

# %% [markdown]
# The first are kept in all three fits: L23H0 or L29H1, say. Further down a mean hides how it came about: 0.67 may be a
# head that is kept in two fits of three, because in the third another one does its work, and not a head that is two
# thirds open. And L23H4, which knows the capitals in the other notebooks? Little facilitation, much irrelevance: opened
# when pulled open, shut when pulled shut. This task is not about countries.
#
# ## Do the roles say what they should?
#
# A claim about heads can be tried out. Start from G⁺, take the first k heads of a role, and compare them *gated off*
# with the same heads *gated on*, on items that were not fitted. If the roles are right, the task falls with the
# facilitating heads, gains without the interfering ones, and does not notice the irrelevant ones. And since a model
# breaks when enough of it is taken out, whatever it was, heads in random order stand beside them.

# %%
curves = mh.role_curve(model, test.items(range(8)), gates, counts=[0, 1, 10, 30], draws=2, progress=False)
mh.plots.role_curves(curves)

# %%
change = curves.table.pivot(index="k", columns="which", values="change")
random = change.filter(like="random")
assert change.loc[10, "facilitation"] < random.loc[10].min() - 2
assert change.loc[30, "facilitation"] < random.loc[30].min() - 5
assert change["irrelevance"].abs().max() < 0.5
change.round(2)

# %% [markdown]
# Random heads were as likely chosen as any, so what they cost is the price of taking out so many. A role whose line
# lies in their band orders heads no better than chance. Here the first ten facilitating heads cost three or four nats,
# where ten random ones cost less than one; thirty cost far more. Thirty irrelevant heads cost 0.2 nats. Of the
# interfering heads no such thing can be said. In the fits of one processor thirty of them gain 0.7 nats, in those of
# another they cost half a nat, like random ones: three short fits do not tell which heads stand in the way.
#
# ## Beside ablation
#
# Are these just the heads that one finds by taking out one at a time? `mh.ablation_effects` measures the same log p
# with each head's z set to zero, all others as they are; we take every third head, to save time. `mh.compare_roles`
# gives rank correlations over heads. Heads of a layer read the same residual stream, so the intervals come from
# leaving out each layer once.

# %%
third = [(layer, head) for layer in range(model.n_layers) for head in range(layer % 3, model.n_heads, 3)]
effects = mh.ablation_effects(model, test.items(range(4)), ["zero"], heads=third, progress=False)
compared = mh.compare_roles(roles, effects).set_index("role")
assert compared.loc["facilitation", "spearman"] < 0 < compared.loc["irrelevance", "ci_low"]
compared[["other", "spearman", "ci_low", "ci_high", "n"]].round(2)

# %%
beside = pd.DataFrame(
    {
        "effect": effects["zero"].scores.values.ravel(),
        "facilitation": roles["facilitation"].scores.values.ravel(),
        "in every seed": always.ravel(),
    },
    index=[f"L{layer}H{head}" for layer in range(model.n_layers) for head in range(model.n_heads)],
).dropna()
beside.sort_values("effect").head(8).round(2)

# %% [markdown]
# An effect below 0 means that the head is needed, so facilitation and effect should correlate *negatively*. They do so
# weakly, −0.2, with an interval that reaches 0: these are two different questions. Where they part, look at the head.
# Needed by the gates and not by ablation: it may be one of several that do the same, and only one at a time was taken
# out. The other way round: its part may be taken over as soon as the others have adapted. And a correlation over all
# heads may be about depth alone, where both rise or fall with the layer.
#
# ## What a role does not say
#
# - **Not how much.** Moving one logit from +4 to −4 is worth 8 λ / 270 to the pull, with our λ = 1 that is 0.03 nats. A
#   head worth more stays open, and one worth a hundred times as much is no more than open. Another λ sets another bar,
#   and a larger model, with more heads to share the mean, a lower one.
# - **Not which head, from one seed.** There are several ways through a model. *Always* is what the ways found have in
#   common, *any* is what is part of some way. Three seeds are few: a fourth can only lower the one and raise the other.
# - **Not what a head does.** A head of the first layers that keeps the residual stream in order is needed by every task
#   (see the exercise). Nor whether it acts on its own: gates are fitted together, and each is right beside the others.
# - **Not that an irrelevant head is idle:** to *this* task, in *this* company. With the others gone it may be needed.
# - **Not that the model is better without interfering heads.** These targets are likelier; other texts may pay for it.
# - **Not that the head says something.** g = 0 puts zeros where the model never saw any. A head that says the same in
#   every text can be needed by this measure. Mean ablation tells the two apart (`mh.ablation_effects(..., ["mean"])`).
# - **You may say:** fitted to these items, with this λ, the gate of this head stayed open (or shut) whichever way it
#   was pulled, in so many of so many seeds; and on other items gating off such heads costs so many nats, where as many
#   random ones cost so many.
#
# `mh.fit_gates` with its defaults (`checkpoint="gates.safetensors"` keeps how far it came), or
# `mechheads roles --task aba_abb --out roles`, does all of this in full; take a GPU, or a night.
#
# ## Exercise: needed for what?
#
# Ten heads facilitate. Are they the machinery of *this* task, or does the model need them for anything? Write another
# task that has nothing to do with patterns (three lines), and look what becomes of its targets, and of ours, when the
# ten most facilitating heads are off, and when the ten most irrelevant are.

# %%
capital = dict(mh.Relation.load("country_to_capital").pairs)
countries = ["France", "Germany", "Spain", "Italy", "Japan", "Russia", "Austria", "Greece", "Norway", "Sweden"]

# your turn: mh.Task(prompts=[...], targets=[...], name=...),
# and mh.task_log_prob(model, ..., off=roles[...].heads(10), progress=False).mean()

# %% [markdown]
# <details><summary>One solution</summary>
#
# ```python
# prompts = [f"The capital of {country} is" for country in countries]
# other = mh.Task(prompts, [f" {capital[country]}" for country in countries], name="capitals")
# off = {"none": []} | {role: roles[role].heads(10) for role in ("facilitation", "irrelevance")}
# rows = {
#     one.name: [mh.task_log_prob(model, one, off=heads, progress=False).mean() for heads in off.values()]
#     for one in (test.items(range(8)), other)
# }
# table = pd.DataFrame(rows, index=list(off))
# table.round(2)
# ```
#
# Where the capitals fall as far as the pattern does, these heads are no machinery for patterns: they keep the residual
# stream in order for whatever comes. Roles of two tasks have to be fitted and compared before a head may be called a
# head *of* one of them. `mh.contrast_gates(model, retain=..., forget=...)` looks for that difference directly: gates
# under which one variant of a task is still done, and the other no more.
# </details>
