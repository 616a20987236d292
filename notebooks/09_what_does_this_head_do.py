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
# # What does this head do?
#
# You have found a head. A paper names it, or a patching experiment points to it. Before you do anything else, ask two
# questions: **what does it usually attend to**, and **what does it write?** This notebook asks them of three heads of
# the default model: L16H0, L18H6 and L23H4. Then it turns each head off, and asks whether all the answers agree.
#
# You should know what an attention head, the residual stream and a logit are; no other notebook is needed. To save time
# we read few texts: the notebook takes less than a minute on two cores that do nothing else, and longer on a busy or
# older machine.

# %%
from itertools import islice

import numpy as np
import pandas as pd

import mechheads as mh
from mechheads.behaviour import default_texts
from mechheads.patching import side_by_side

pd.set_option("display.max_colwidth", None)

model = mh.load()
HEADS = ["L16H0", "L18H6", "L23H4"]


# %% [markdown]
# ## What does it attend to?
#
# `mh.profile_heads` runs the model on ordinary text, and measures which share of its attention a head gives to certain
# tokens. The package has texts of twelve kinds for this, such as stories, dialogue, timetables and code. We take the
# beginning of one text of each kind. A share alone says little: near the beginning of a text, the previous token is one
# of few. So each share comes with a **null**, the share that is left if the attention of each token is shuffled among
# the tokens before it. A head gets a name if its share is clearly above the null.

# %%
texts = [model.tokenizer(text)["input_ids"][:80] for text in islice(default_texts(), 12)]
profile = mh.profile_heads(model, texts, window=80)
for head in HEADS:
    print(f"{head}: {', '.join(profile.names(head)) or 'no name'}")

# %%
BEHAVIOURS = ["first", "previous", "duplicate", "induction", "delimiter"]


def measured(head: str) -> pd.DataFrame:
    """What the profile measured of one head: a row for each behaviour."""
    at = mh.HeadId.parse(head)
    found = profile.dataset.sel(layer=at.layer, head=at.head, behaviour=BEHAVIOURS)
    return found[["score", "null", "moved"]].to_dataframe()[["score", "null", "moved"]]


pd.concat({head: measured(head) for head in HEADS}, axis=1).round(2)

# %% [markdown]
# Read `score` against `null` first:
#
# - **L16H0** gives most of its attention to the previous token, many times as much as chance would.
# - **L18H6** gives most of it to the first token, and most of the rest to **induction** tokens: if the current token
#   has occurred before, the tokens that came after it then.
# - **L23H4** also gives most to the first token. Nothing else here is far above its null.
#
# The first token is special. Many heads rest there when there is nothing to do, and take little from it. So look at
# `moved` too. It is the same share, with attention weighted by the size of what is taken from each token. L18H6 and
# L23H4 take less from the first token than their attention suggests, and more from others. The name *sink* is about
# attention alone, so it may describe only what a head does when it is idle.
#
# Are these three heads unusual? The map shows three behaviours for all 270 heads.

# %%
profile.select(behaviour=["first", "previous", "induction"]).plot()

# %% [markdown]
# Many heads of the later half rest on the first token. Previous-token and induction heads are few.
#
# ## Look at examples, and not only at the strongest
#
# A share is a mean over many tokens, and shows none of them. It is tempting to look at the texts in which a head does
# most, but these are rarely typical. `mh.behaviour.head_examples` sorts windows of text by the head's **activity**: how
# much it moves from tokens other than the first, at its busiest token. It draws examples from each tenth. In the
# examples, `[[ ]]` marks the token that attends, and `<< >>` the one from which most is moved.

# %%
examples = mh.behaviour.head_examples(model, texts, window=80, per_quantile=1)
of_heads = pd.concat({head: examples.of(head, around=5).set_index("part") for head in HEADS}, names=["head"])
of_heads.loc[(slice(None), ["highest", "60-70%", "30-40%", "lowest"]), ["activity", "weight", "shown"]].round(2)

# %% [markdown]
# L16H0 is easy to read: everywhere, it looks one token back. For L18H6, look at the token *before* the `<< >>`: it is
# often the token in `[[ ]]`, or part of the same phrase. The examples of L23H4 fit no simple rule. Its strongest one
# tells another story than the others. You may see a pattern in a few examples, but you would see one in random
# examples too. So test your guess on new text, as exercise 3 does.
#
# How active are the heads from window to window?

# %%
tenths = examples.table[examples.table["part"].str.contains("%")]
activity = tenths.pivot_table(index="part", columns="head", values="activity", sort=False)[HEADS]
labels = {"part": "windows, the most active first", "value": "activity (share of the stream)"}
size = {"width": 900, "height": 340, "template": "plotly_white"}
figure = activity.plot(backend="plotly", markers=True, labels=labels, **size)
figure.update_yaxes(rangemode="tozero").update_layout(margin={"t": 30})

# %% [markdown]
# L16H0 does about as much in each window. The other two do much more in some windows than in others: they wait for
# something. So their strongest examples are not typical, and a mean over all text hides what they do.
#
# ## Without any text
#
# In ordinary text, one pattern can have several causes. After *"one, two, three, and one,"* a head that attends to
# *"two"* may look for the token after an earlier copy, or for numbers, or for words in lists. In random tokens that are
# written down twice, nothing but the earlier copy says what comes next.

# %%
rows = mh.behaviour.repeated_tokens(model, n=8, length=16)
on_random = mh.profile_heads(model, rows, window=32)
pd.DataFrame(
    {
        (where, name): {head: found.select(behaviour=name)[head]["score"] for head in HEADS}
        for where, found in {"text": profile, "random tokens": on_random}.items()
        for name in ("previous", "induction")
    }
).round(2)

# %%
induction = on_random.select(behaviour="induction")
print(induction.compare(profile.select(behaviour="induction")))

# %% [markdown]
# L16H0 and L18H6 do here what they do in text, only more so. L23H4 does neither. Over all heads, the two ways to find
# induction heads agree only in part: several of their first ten heads are the same, and several are not.
#
# ## What does it write?
#
# A head attends to a token and adds something to the residual stream. Does it write *that token*, or something else?
# The profile also tells how often a head raises the logit of the token that it attends to most (the first token left
# out) above the logit of another token of the text. By chance it does so half of the time.

# %%
copying = {}
for head in HEADS:
    at = mh.HeadId.parse(head)
    found = profile.dataset.sel(layer=at.layer, head=at.head)
    copying[head] = {name: float(found[name]) for name in ("copying", "copying_low", "copying_high")}
pd.DataFrame(copying).T.round(2)

# %% [markdown]
# L18H6 and L23H4 tend to raise what they attend to. L16H0 does not: if it writes down the previous token, this is not
# a prediction. A head can also write for later heads, which the logits do not show.
#
# ### Does it write to the answer?
#
# A logit is a sum of what each head adds, so we can look up the part of each head. We take three kinds of prompts: rows
# of random tokens that are about to repeat, questions for capitals, and everyday sentences.

# %%
capital = dict(mh.Relation.load("country_to_capital").pairs)
countries = ["France", "Spain", "Italy", "Japan", "Greece", "Norway", "Egypt", "Cuba"]
everyday = {
    "The rain had stopped, and the children went out to": " play",
    "He opened the door and turned on the": " light",
    "We were late, so we took a taxi to the": " station",
    "The shop closes at six, and it opens again at ten in the": " morning",
    "She read the letter twice and put it back in the": " box",
    "Before you paint the wall, wash it with warm": " water",
    "The committee will meet again at the end of the": " month",
    "Most of the apples in this garden are still too small to": " eat",
}
prompts = {
    "copies": mh.Prompts([row[:-6] for row in rows], answer=[row[-6] for row in rows]),
    "capitals": mh.Prompts(
        [f"The capital of {country} is" for country in countries],
        answer=[f" {capital[country]}" for country in countries],
    ),
    "everyday": mh.Prompts(list(everyday), answer=list(everyday.values())),
}
parts = {name: mh.behaviour.logit_attribution(model, some) for name, some in prompts.items()}
side_by_side(parts, HEADS)

# %% [markdown]
# These numbers are logits of the right answer, with intervals over prompts. L23H4 adds a lot to the capital, and next
# to nothing elsewhere. L16H0 adds hardly anything to any answer, as expected. But L18H6 does not raise the copied token
# either, although it attends to this very token, and tends to write what it attends to. Is it idle?
#
# First, what exactly does L23H4 write here? `run.result` is what a head adds to the residual stream, and W_U says which
# tokens that raises most.

# %%
run = model.cache(prompts["capitals"])
written = run.result["L23H4"][:, -1] @ model.model.W_U  # [prompt, d_vocab]
most = written.topk(8).indices.tolist()
for country, tokens in zip(countries, most, strict=True):
    print(f"{country:7}", *map(model.tokenizer.decode, tokens))

# %% [markdown]
# Words about the country that was asked for: its name, its people, its language, and for most of these countries the
# capital among them. And from which token does it take them? We compare the logits of two capitals, and divide what
# each head adds among the tokens that it reads.

# %%
france = mh.Prompts(["The capital of France is"], answer=[" Paris"], wrong=[" Rome"])
by_token = mh.behaviour.logit_attribution(model, france, by="source")
by_token.plot()

# %% [markdown]
# All that L23H4 adds comes from the country. In the last layer, other heads add to the answer or take from it. They
# read the last token itself, to which L23H4 has already written.
#
# ## Does it matter?
#
# So far we have only watched. To learn whether the model needs a head, replace its z by its mean over all tokens of the
# prompts, and see how the log-probability of the right answer changes.

# %%
lost = {
    name: mh.ablate(model, some, intervention="mean", metric=mh.log_prob, heads=HEADS) for name, some in prompts.items()
}
side_by_side(lost, HEADS)

# %% [markdown]
# L18H6 is not idle. Without it, the model predicts the copies much worse. It writes nothing to the answer itself, so
# later layers must use what it writes. And L16H0, which no logit shows, matters most. For the capitals, of
# these three only L23H4 matters. In the everyday sentences we see no effect, but eight sentences are few.
#
# ### Why does L18H6 look there?
#
# Does L16H0 matter because of L18H6? At each token, L16H0 may note which token came before; an induction head looks for
# a token at which this note equals the current token. Two questions test that. **What is the score made of?**
# `mh.behaviour.attention_attribution` splits the score of L18H6 for the token after the earlier copy, compared with the
# other tokens, over what earlier heads added to the stream, here at that token (its key). **What is lost without a
# head?** `mh.patching.attention_to` is a metric on where a head looks. We ablate each earlier head and see how the log
# of this attention changes.

# %%
copied = mh.Prompts([row[:-6] for row in rows], positions={"next": [10] * len(rows)})  # row[9] has come again
why = mh.behaviour.attention_attribution(model, copied, "L18H6", key="next")
looks = mh.patching.attention_to("L18H6", "next", log=True)
without = mh.ablate(model, copied, intervention="mean", metric=looks)
largest = [(-abs(scores.to_dataframe()["score"])).nsmallest(3).index for scores in (why.key, without)]
some = dict.fromkeys([*largest[0], *largest[1]])
side_by_side({"part of the score, key": why.key, "change of log attention without it": without}, list(some))

# %% [markdown]
# Both put L16H0 first, by far: what it wrote at the token after the copy is most of the score, and without it L18H6
# looks there much less. After that they differ. L17H8 has the second part of the score, and almost nothing is lost
# without it. Early heads come next if heads are ablated, and have no such part: what they do reaches L18H6 through
# later heads and MLPs, and differs so much between eight rows that the interval includes 0. The parts say exactly what
# a score consists of. Ablation says what depends on a head.
#
# Would you notice this in what the model writes?

# %%
asked = [
    "The capital of France is",
    "Buy rice, milk, salt, tea, figs and eggs. I say it again: buy rice, milk,",
]
for off in ([], HEADS):
    print("off:", *off or ["nothing"])
    for text in mh.generate(model, asked, 4, off=off).texts:
        print("   ", repr(text))

# %% [markdown]
# Even if a text has not changed, this does not mean that the heads do nothing. The most probable token is written until
# another one overtakes it, however much its probability has fallen. Log-probabilities notice the loss earlier.
#
# ## Write down what it does
#
# "L18H6 is an induction head" is a claim about every text. Write it as a **program**: a function that takes the texts
# of the tokens and says how much each token (row) attends to each earlier one (column). `mh.behaviour.test_program`
# says how well it fits. `fit` is 1 if the weights are those of the head, and `excess` is what is left of it if the best
# of four programs that read no tokens, such as "attend to the first token", is subtracted. We write the program with
# six of the texts in sight.


# %%
def after_a_copy(tokens: list[str]) -> np.ndarray:
    """A token attends to what followed its earlier copies; if there are none, to the first token."""
    weights = np.zeros((len(tokens), len(tokens)))
    for query, token in enumerate(tokens):
        keys = [key for key in range(1, query) if tokens[key - 1] == token] or [0]
        weights[query, keys] = 1 / len(keys)
    return weights


seen, unseen = texts[:6], texts[6:]
first_try = mh.behaviour.test_program(model, seen, {"L18H6": after_a_copy}, window=80)
first_try.table[["program", "fit", "excess"]].round(2)

# %% [markdown]
# Less than half of the weight is where the program says. Look at the texts in which it fails, and there at the tokens.

# %%
first_try.windows.nsmallest(6, "fit")[["window", "fit"]].round(2)

# %%
worst = model.cache([seen[int(first_try.windows["fit"].idxmin())]])
tokens, does = list(worst.tokens.strings[0]), worst.pattern["L18H6"][0]
says = mh.behaviour.AttentionProgram(after_a_copy).weights(tokens)
pd.DataFrame(
    {
        "token": repr(tokens[query]),
        "the program says": repr(tokens[says[query].argmax()]),
        "the head gives that": float(does[query][says[query] > 0].sum()),
        "the first token": float(does[query, 0]),
    }
    for query in (says - does).abs().sum(-1).argsort(descending=True)[:6].tolist()
).round(2)

# %% [markdown]
# A timetable has many digits, colons and spaces. Each of them has stood there before, and the head does not care: it
# rests on the first token. So the head does not take every repeated token for a copy. Mend the program: only words of
# four letters or more count. Then test it on the six texts that you have not looked at.


# %%
def after_a_word(tokens: list[str]) -> np.ndarray:
    """As before, but only words of four letters or more look for their copies."""
    weights = after_a_copy(tokens)
    for query, token in enumerate(tokens):
        if not (token.strip().isalpha() and len(token.strip()) >= 4):
            weights[query] = 0
            weights[query, 0] = 1
    return weights


tried = {program.__name__: program for program in (after_a_copy, after_a_word)}
fits = {
    (name, where): mh.behaviour.test_program(model, some, {"L18H6": program}, window=80).table
    for name, program in tried.items()
    for where, some in (("seen", seen), ("unseen", unseen))
}
mended = pd.concat(fits).droplevel(2)[["fit", "excess", "program_loss", "uniform_loss"]]
mended.round(3)

# %% [markdown]
# The mended program fits better, and on new texts too. But `excess` is no more than 0: a program that always rests on
# the first token fits as well, because the head rests most of the time. The last columns tell what the next token
# loses, in nats a token, if the head attends as the program says, and if it attends to all tokens alike. With `share`,
# `fit` and the loss of several heads at once, the documentation tests induction heads as a set.
#
# ## Do the views agree?

# %%
summary = pd.DataFrame(
    {
        "names on text": {head: ", ".join(profile.names(head)) or "none" for head in HEADS},
        "induction, random tokens": {head: induction[head]["score"] for head in HEADS},
        "copying on text": {head: found["copying"] for head, found in copying.items()},
        "part in copies": {head: parts["copies"][head]["score"] for head in HEADS},
        "lost on copies": {head: lost["copies"][head]["score"] for head in HEADS},
        "part in capitals": {head: parts["capitals"][head]["score"] for head in HEADS},
        "lost on capitals": {head: lost["capitals"][head]["score"] for head in HEADS},
    }
)
summary.round(2).T

# %% [markdown]
# - **They agree on L16H0.** It attends to the previous token, in text and in random tokens. What it wrote is most of
#   the score by which L18H6 finds its token. And without it, the model copies much worse.
# - **They agree on L18H6 only in part.** It attends as an induction head does, and the model needs it for copies. But
#   it does not write the next token to the logits, although `copying` suggests this. Later layers stand in between.
# - **For L23H4, the profile misses what matters.** It says only that the head often rests. The other views say more:
#   the head writes what belongs to a country, takes it from the country, and the answer depends on it. A profile knows
#   seven behaviours, and what this head does is none of them.
#
# ## What you may conclude, and what not
#
# - **You may say:** on texts like these, L16H0 attends to the previous token, and L18H6 to induction tokens, far more
#   than shuffled attention does. If the z of either is replaced by its mean, random rows are copied worse, by so much.
# - **You may say:** in prompts of this form, L23H4 adds so many logits to the capital, and takes them from the country.
# - **Not:** "L16H0 is there for induction." It is active in every window of text. Copies are what we happened to test.
# - **Not:** "Everyday text does not need these heads." Eight sentences cannot show that there is no effect. And if one
#   head is gone, others may do its work.
# - **Not:** "L18H6 is a sink." It rests on the first token most of the time, and this is not what it is needed for.
# - **Not:** "L16H0 is needed by L18H6 alone." We looked at one reader. Exercise 2 asks for others, and `mh.path_patch`
#   tests single paths (notebook 08 does this).
# - **Not:** "L18H6 does what the program says." Its attention on these texts fits a head that always rests as well.
# - **Not:** "L23H4 is the head for capitals." We asked about capitals, so we found capitals. In text it is active where
#   no country is named.
#
# ## Exercises
#
# Fill in the answer and run the cell after it: it says whether you are right.
#
# ### 1. Looks there, takes elsewhere
#
# L23H4 looks at the first token most of the time, and takes more from other tokens. It is not alone in this. Name a
# head that gives more than half of its attention to the first token (`score`), but less than 30% if attention is
# weighted by what is taken (`moved`).

# %% tags=["exercise"]
takes_elsewhere = None  # your turn: such as "L0H0"

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    takes_elsewhere,
    lambda head: measured(head).loc["first", "score"] > 0.5 and measured(head).loc["first", "moved"] < 0.3,
    right="its pattern looks like that of a resting head, and most of what it moves comes from other tokens.",
    hint='look at measured(head).loc["first"] for the heads of profile.named("sink").',
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# sinks = [str(head) for head in profile.named("sink")]
# takes_elsewhere = min(sinks, key=lambda head: measured(head).loc["first", "moved"])
# ```
#
# Several heads of layers 23 and 24 are of this kind. A pattern of attention shows them as idle, and they are not.
# </details>
#
# ### 2. Another reader
#
# L18H6 finds its token by what L16H0 wrote there. Name another induction head of which this is true: L16H0 is the
# largest part of the keys in its score for the same token.

# %% tags=["exercise"]
reads_too = None  # your turn: such as "L0H0"; start from induction.heads(8)

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    reads_too,
    lambda head: (
        mh.HeadId.parse(head) != mh.HeadId(18, 6)
        and mh.HeadId.parse(head) in induction.heads(8)
        and mh.behaviour.attention_attribution(model, copied, head, key="next").key.heads(1) == (mh.HeadId(16, 0),)
    ),
    right="it reads the same note. So without L16H0, several heads at once lose their way.",
    hint='use mh.behaviour.attention_attribution(model, copied, head, key="next").key.heads(1) for each of them.',
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# readers = {}
# for head in induction.heads(8):
#     parts_of_key = mh.behaviour.attention_attribution(model, copied, head, key="next").key
#     readers[str(head)] = str(parts_of_key.heads(1)[0])
# print(readers)
# reads_too = next(head for head, first in readers.items() if first == "L16H0" and head != "L18H6")
# ```
#
# This is why the loss without L16H0 is larger than the loss without L18H6: one head writes the note, and several read
# it.
# </details>
#
# ### 3. Predict the head
#
# If you know what a head does, you can write a text in which it does much. Write one of 16 to 40 tokens in which L23H4
# is more active than in any window of `examples`.

# %% tags=["exercise"]
my_text = None  # your turn: a text of at least 16 tokens

# %% tags=["check-answer", "hide-input"] jupyter={"source_hidden": true}
mh.testing.check_answer(
    my_text,
    lambda text: (
        len(model.tokenizer(text).input_ids) <= 40
        and mh.behaviour.head_examples(model, [text, text]).of("L23H4")["activity"].max()
        > examples.of("L23H4")["activity"].max()
    ),
    right="you predicted it. Which of your words does it need? Change one after the other.",
    hint="it writes words about countries. Name some, and ask for something that belongs to one of them.",
)

# %% [markdown] tags=["solution"]
# <details><summary>One solution</summary>
#
# ```python
# my_text = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"
# ```
#
# A guess that predicts new texts is worth more than one that fits the texts it was made from. But one success does not
# say that the guess is right: a text about rivers or painters may do as well.
# </details>
