"""Lines of the package whose breaking gives a wrong number in silence, and where the tests should notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One line, broken.

    Attributes:
        file: the file in ``mechheads``.
        old, new: the text that is replaced, which occurs once in the file, and what replaces it.
        breaks: what is wrong then.
        tests: files or folders of ``tests`` that should notice.
        no_change: why no number changes, if the mutant only makes the package slower or fails loudly elsewhere.
    """

    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    no_change: str = ""


_ENGINE = ("engine/test_sweep.py", "engine/test_rows.py", "engine/test_micro.py")
_PATHS = ("patching/test_path.py", "patching/test_mlp_paths.py", "patching/test_micro_paths.py")
_STATS = ("results/test_stats.py",)
_SHIPS = ("safety/heads/test_ships.py",)
_RANKS = ("labels/test_static.py",)
_LEDGER = ("ledger",)

MUTANTS: tuple[Mutant, ...] = (
    # windows, packed rows, masks
    Mutant(
        "engine/rows.py",
        "past = visible[where][..., : self.n_past] & before[:, None]",
        "past = visible[where][..., : self.n_past]",
        "the past is seen from every start of a row",
        _ENGINE,
    ),
    Mutant(
        "engine/rows.py",
        "dtype=torch.bool, device=where.device).tril()",
        "dtype=torch.bool, device=where.device)",
        "tokens of a window look ahead",
        _ENGINE,
    ),
    Mutant(
        "engine/rows.py",
        "start = torch.minimum(start, last)",
        "start = torch.minimum(start + 1, last)",
        "a window begins one position late",
        _ENGINE,
    ),
    Mutant(
        "engine/rows.py",
        "return (self.at - self.start[:, None]).clamp_min(0)",
        "return (self.at - self.start.amin()).clamp_min(0)",
        "positions are read as if all rows began together",
        _ENGINE,
    ),
    Mutant(
        "engine/packing.py",
        "& (common | same) & (where <= where[:, None])",
        "& (where <= where[:, None])",
        "prompts of a packed row see each other",
        _ENGINE,
    ),
    Mutant(
        "engine/packing.py",
        "shared = min(shared, int(last.amin()))",
        "shared = int(last.amin())",
        "prompts share tokens that differ",
        _ENGINE,
    ),
    Mutant(
        "engine/packing.py",
        "alike = (values - values[:1]).abs() <= noise",
        "alike = (values - values[:1]).abs() <= noise + 1",
        "activations one apart count as equal",
        _ENGINE,
    ),
    Mutant(
        "engine/packing.py",
        ".all(-1).all(0).long().cumprod(0).sum()",
        ".all(-1).all(0).long().sum()",
        "shared positions are counted behind the first that differs",
        _ENGINE,
    ),
    Mutant(
        "engine/wavefront.py",
        "same = torch.eye(fold.per_row, dtype=torch.bool, device=own.device)",
        "same = torch.ones(fold.per_row, fold.per_row, dtype=torch.bool, device=own.device)",
        "copies in a row see each other",
        _ENGINE,
    ),
    Mutant(
        "engine/wavefront.py",
        "unchanged = (window.at < window.start[:, None])[..., None]",
        "unchanged = (window.at <= window.start[:, None])[..., None]",
        "the first changed position gives its old state",
        _ENGINE,
    ),
    Mutant(
        "engine/wavefront.py",
        "return self.model.n_kv_heads < self.model.n_heads and any(",
        "return False and any(",
        "a new key or value reaches all query heads of its group",
        ("engine/test_sweep.py", "patching/test_path.py"),
    ),
    Mutant(
        "engine/wavefront.py",
        "return final[moved(torch.tensor(order).argsort(), final.device)]",
        "return final[moved(torch.tensor(order), final.device)]",
        "copies come back in another order",
        ("engine", "patching/test_path.py"),
    ),
    Mutant(
        "interventions/new_z.py",
        "new = torch.where(base.tokens.mask[..., None], new, old)\n        differs = (new != old).any(-1)",
        "differs = (new != old).any(-1)",
        "padding counts as a changed position",
        ("engine",),
    ),
    Mutant(
        "interventions/new_z.py",
        "return new, torch.where(differs.any(1), differs.long().argmax(1), never)",
        "return new, differs.long().argmax(1)",
        "a head that never changes begins at position 0",
        ("engine",),
    ),
    Mutant(
        "interventions/new_z.py",
        "return new, torch.where(differs.any(1), differs.long().argmax(1), never)",
        "return new, torch.where(differs.any(1), differs.long().argmax(1) + 1, never)",
        "the first changed position is taken one too late",
        _ENGINE,
    ),
    Mutant(
        "interventions/new_z.py",
        "changed.add(layer, (new != old).any(-1) & base.tokens.mask[part, None])",
        "changed.add(layer, (new != old).any(-1).roll(1, -1) & base.tokens.mask[part, None])",
        "the first position at which q, k or v changes is wrong",
        _ENGINE,
    ),
    Mutant(
        "heads.py",
        "return head // (n_heads // n_kv_heads)",
        "return head % n_kv_heads",
        "query heads read another key/value head",
        ("test_heads.py",),
    ),
    Mutant(
        "engine/shared_prefix.py",
        "first = torch.where(other, differs.long().argmax(1), last[:, 0])",
        "first = torch.where(other, differs.long().argmax(1) + 1, last[:, 0])",
        "the other run of a pair is taken over one token too far",
        ("engine/test_shared_prefix.py",),
    ),
    Mutant(
        "engine/places.py",
        "torch.where(at < 0, at + tokens.lengths, at)",
        "torch.where(at < 0, at + tokens.ids.shape[1], at)",
        "positions counted from the end fall into padding",
        ("engine",),
    ),
    # interventions
    Mutant(
        "interventions/basic.py",
        "return (value.float() * real).sum((0, 1)) / real.sum()",
        "return (value.float() * real).sum((0, 1)) / real.numel()",
        "means are over padding too",
        ("engine/test_sweep.py", "engine/test_micro.py"),
    ),
    Mutant(
        "interventions/basic.py",
        "donor[order] = order.roll(1)",
        "donor[order] = order",
        "resampling gives each prompt its own z",
        ("engine", "patching"),
    ),
    Mutant(
        "interventions/basic.py",
        "last = context.mask.sum(1)[donor, None] - 1",
        "last = context.mask.sum(1)[:, None] - 1",
        "resampling reads the padding of a shorter prompt",
        ("engine", "patching"),
    ),
    Mutant(
        "interventions/head_change.py",
        "at.setdefault((change.layer, change.site), []).append((change, where))",
        "at[change.layer, change.site] = [(change, where)]",
        "of several changes in a layer only the last is made",
        ("engine", "generation", "safety/heads/test_sahara.py"),
    ),
    # frozen paths
    Mutant(
        "engine/frozen_heads.py",
        "there = torch.cat([there, attention + self._difference(heads)]) if heads else there",
        "there = torch.cat([there, attention]) if heads else there",
        "a sender's change does not leave its layer",
        _PATHS,
    ),
    Mutant(
        "engine/frozen_heads.py",
        "changed = [out - after]",
        "changed = [out]",
        "with frozen MLPs the whole stream counts as the change",
        _PATHS,
    ),
    Mutant(
        "engine/frozen_heads.py",
        "inputs |= self._head_inputs(layer, residual + change, receivers)",
        "inputs |= self._head_inputs(layer, residual - change, receivers)",
        "receivers read the change with the wrong sign",
        _PATHS,
    ),
    # statistics
    Mutant(
        "results/stats.py",
        "off = (total - mean * count) / size / np.sqrt(1 - share)",
        "off = (total - mean * count) / size",
        "intervals without the correction for few clusters",
        _STATS,
    ),
    Mutant(
        "results/stats.py",
        "high[part] = mean[:, 0] + error * (q + np.maximum(longer, 0))",
        "high[part] = mean[:, 0] + error * (q + np.maximum(-longer, 0))",
        "intervals are wider on the wrong side",
        _STATS,
    ),
    Mutant(
        "results/stats.py",
        "p[part] = as_far / signs.shape[1] if exact else (1 + as_far) / (1 + n)",
        "p[part] = as_far / signs.shape[1] if exact else as_far / n",
        "a p value can be 0",
        _STATS,
    ),
    Mutant(
        "results/stats.py",
        "as_far = (np.abs(totals[part] @ signs) >= seen - rounding).sum(axis=1)",
        "as_far = (np.abs(totals[part] @ signs) > seen + rounding).sum(axis=1)",
        "p values do not count what is as far as observed",
        _STATS,
    ),
    Mutant(
        "results/stats.py",
        "totals, counts = _per_cluster(rows - null, groups)",
        "totals, counts = _per_cluster(rows, groups)",
        "p values test against 0 whatever the null is",
        (*_STATS, "gating/roles"),
    ),
    Mutant(
        "results/stats.py",
        "q_values(np.where(np.isnan(p) & untested, 1.0, p))",
        "q_values(p)",
        "q values forget the tests that a race left out",
        (*_STATS, "engine/test_racing.py"),
    ),
    Mutant(
        "results/stats.py",
        "centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)",
        "centre = share",
        "Wilson's interval is centred on the share",
        _STATS,
    ),
    Mutant(
        "results/stats.py",
        "return float((n - 1) / n * ((without - without.mean()) ** 2).sum())",
        "return float(((without - without.mean()) ** 2).sum() / (n - 1))",
        "the jackknife's variance is too small by far",
        (*_STATS, "results/test_agreement.py"),
    ),
    Mutant(
        "results/stats.py",
        "groups = np.array([number[label] for label in labels])",
        "groups = np.arange(len(labels))",
        "prompts of one cluster count as independent",
        _STATS,
    ),
    Mutant(
        "results/correlation.py",
        "ranks = of_value.cumsum(1) - (of_value - 1) / 2",
        "ranks = of_value.cumsum(1)",
        "tied heads do not share their rank",
        ("results",),
    ),
    # metrics and evaluation
    Mutant(
        "metrics/basic.py",
        "terms = p * (near.expm1() - near)",
        "terms = log_q.exp() * ((-near).expm1() + near)",
        "KL the other way round",
        ("engine", "safety/heads/test_ships.py"),
    ),
    Mutant(
        "metrics/basic.py",
        "return (torch.cat([_kl_of_logits(*part) for part in parts]) * context.mask).sum(-1)",
        "return torch.cat([_kl_of_logits(*part) for part in parts]).sum(-1)",
        "KL of several positions counts padding",
        ("engine", "safety/heads"),
    ),
    Mutant(
        "engine/evaluate.py",
        "change = torch.zeros(len(final), len(self.mask), dtype=torch.float64, device=final.device)\n"
        "        changed = (final != self._base_final).flatten(1).any(1)",
        "change = torch.zeros(len(final), len(self.mask), dtype=torch.float64, device=final.device)\n"
        "        changed = (final != self._base_final).flatten(1).all(1)",
        "a copy that changes some states counts as unchanged",
        ("engine",),
    ),
    Mutant(
        "engine/evaluate.py",
        "distance = float((source - self.base_value).mean())",
        "distance = float((source - self.base_value).abs().mean())",
        "normalised effects have the wrong sign and size",
        ("engine", "patching"),
    ),
    # attribution and edges
    Mutant(
        "patching/attribution.py",
        "along = along.masked_fill(~job.tokens.mask[:, None], 0)",
        "along = along * 1",
        "attribution of padding counts",
        ("patching/test_attribution.py",),
    ),
    Mutant(
        "patching/gradient_path.py",
        "(k + 0.5) / self.steps",
        "k / self.steps",
        "integrated gradients at the wrong points",
        ("patching/test_attribution.py",),
    ),
    Mutant(
        "patching/gradients.py",
        "return [each / path.steps for each in total]",
        "return list(total)",
        "integrated gradients are summed instead of averaged",
        ("patching/test_attribution.py",),
    ),
    Mutant(
        "patching/edges/gradients.py",
        "n = max(0, graph.before_heads(layer) - first)",
        "n = max(0, graph.before_mlp(layer) - first)",
        "heads get edges from their own layer",
        ("patching/test_edges.py",),
    ),
    Mutant(
        "patching/edges/gradients.py",
        "return scores / self.points",
        "return scores",
        "edges of several steps are summed instead of averaged",
        ("patching/test_edges.py",),
    ),
    # racing
    Mutant(
        "engine/racing.py",
        "level = 1 - self.error / (self.top * (len(self.looks(clusters)) - 1))",
        "level = 1 - self.error",
        "a race's bound forgets that there are many heads and looks",
        ("engine/test_racing.py",),
    ),
    Mutant(
        "engine/racing.py",
        "beaten &= behind.sum(0) >= self.top",
        "beaten &= behind.sum(0) >= 1",
        "a head is dropped if one head is better",
        ("engine/test_racing.py",),
    ),
    Mutant(
        "engine/racing.py",
        'return np.argsort(-np.abs(mean) if self.by == "absolute" else -mean)[: 2 * self.top]',
        "return np.argsort(-mean)[: 2 * self.top]",
        "by absolute value, the lead is that of the scores",
        ("engine/test_racing.py",),
    ),
    # labels from weights
    Mutant(
        "labels/ranks.py",
        "larger, smaller = count(entries, operator.gt, mine + near), count(entries, operator.lt, mine - near)",
        "larger, smaller = count(entries, operator.gt, mine), count(entries, operator.lt, mine)",
        "no slack for rounding where a sample decides",
        ("labels",),
    ),
    Mutant(
        "labels/ranks.py",
        "return pairs[(larger < limit) | (smaller < limit)]",
        "return pairs[larger < limit]",
        "pairs that a head suppresses are ruled out",
        ("labels",),
    ),
    Mutant(
        "labels/ranks.py",
        "behind = torch.arange(entries.shape[1], device=entries.device) > target",
        "behind = torch.arange(entries.shape[1], device=entries.device) < target",
        "ties are ranked the other way",
        ("labels",),
    ),
    Mutant(
        "labels/ranks.py",
        "found = wanted >= edge",
        "found = wanted > edge",
        "the k-th largest entry does not count",
        ("labels",),
    ),
    Mutant(
        "labels/ranks.py",
        "apart = own - (total - own) / (n - 1) if n > 1",
        "apart = own - total / n if n > 1",
        "the contrast compares a target with itself too",
        ("labels",),
    ),
    Mutant(
        "labels/ranks.py",
        "return (squares / self._model.d_vocab - mean[:, None] * mean).float()",
        "return (squares / self._model.d_vocab).float()",
        "the contrast's spread is not about the mean",
        ("labels",),
    ),
    Mutant(
        "labels/readings.py",
        "each = each if bias is None else each - bias.float()[:, None]",
        "each = each",
        "carried values keep the bias of v",
        ("labels/test_readings.py", "labels/test_static.py"),
    ),
    # behaviour
    Mutant(
        "behaviour/composition.py",
        'reading = _Thin(*((right, left) if way == "K" else (left, right)))',
        "reading = _Thin(left, right)",
        "K-composition is Q-composition",
        ("behaviour/test_weights.py",),
    ),
    Mutant(
        "behaviour/composition.py",
        "p_value=gamma.sf(score, shape, scale=d * spread)",
        "p_value=gamma.cdf(score, shape, scale=d * spread)",
        "p values of composition are those of the other tail",
        ("behaviour/test_weights.py",),
    ),
    Mutant(
        "behaviour/measure.py",
        "below = torch.where(same, 0.5, (logits < logits.gather(-1, attended)).float()) * middle",
        "below = torch.where(same, 1.0, (logits < logits.gather(-1, attended)).float()) * middle",
        "copying counts the token itself",
        ("behaviour",),
    ),
    Mutant(
        "behaviour/measure.py",
        'found["norm"] = (norm_of(z, W_O) / resid_pre.norm(dim=-1)[..., None])[:, 1:].mean(1)',
        'found["norm"] = (norm_of(z, W_O) / resid_pre.norm(dim=-1)[..., None]).mean(1)',
        "the norm counts the first token",
        ("behaviour",),
    ),
    Mutant(
        "behaviour/logit_attribution.py",
        "kept.z[layer] = value[row, last].clone()",
        "kept.z[layer] = value[row, -1].clone()",
        "logits are attributed at padding",
        ("behaviour/test_logit_attribution.py",),
    ),
    # safety
    Mutant(
        "safety/heads/angles.py",
        "return np.degrees(np.arctan2(sines, cosines))",
        "return np.degrees(np.arctan2(cosines, sines))",
        "angles are their complements",
        ("safety/heads",),
    ),
    Mutant(
        "safety/heads/angles.py",
        "without = [np.array([label != left_out for label in labels]) for left_out in each]",
        "without = [np.arange(len(labels)) != i for i in range(len(each))]",
        "the jackknife leaves out prompts in place of clusters",
        ("safety/heads",),
    ),
    Mutant(
        "safety/heads/lost_refusals.py",
        "return Lost.of(-change[:, :, 0] - moved, -change[:, :, 1], found)",
        "return Lost.of(-change[:, :, 0] + moved, -change[:, :, 1], found)",
        "the effect on look-alikes is added in place of subtracted",
        ("safety/heads/test_contribution.py",),
    ),
    Mutant(
        "safety/heads/contribution.py",
        "there = self.other.tokens.lengths[:, None] - back",
        "there = context.mask.sum(1)[:, None] - back",
        "the look-alike's z is read at other tokens",
        ("safety/heads/test_contribution.py",),
    ),
    Mutant(
        "safety/heads/sahara.py",
        "chosen.append(self._head(np.nanargmax(scores)))",
        "chosen.append(self._head(np.nanargmin(scores)))",
        "Sahara takes the weakest head",
        ("safety/heads/test_sahara.py",),
    ),
    Mutant(
        "safety/heads/direction.py",
        "values[layer, members] = (written[0][members] - written[1][members]).sum(0)",
        "values[layer, members] = written[0][members].sum(0)",
        "what is written on look-alikes is not subtracted",
        ("safety/heads/test_direction.py",),
    ),
    Mutant(
        "safety/requests/openings.py",
        "log_probs[:, i, token] for i, token in enumerate(self.opening)",
        "log_probs[:, -1, token] for i, token in enumerate(self.opening)",
        "an opening's tokens are all read at the last position",
        ("safety",),
    ),
    # gates
    Mutant(
        "gating/fit/gates.py",
        'return total / n_targets if reduce == "mean" else total',
        'return total / at.shape[1] if reduce == "mean" else total',
        "the mean over a target's tokens divides by the longest target",
        ("gating",),
    ),
    Mutant(
        "gating/fit/gates.py",
        "at = (tokens.lengths[:, None] - 1 - back).clamp_min(0)",
        "at = (tokens.lengths[:, None] - back).clamp_min(0)",
        "targets are read at the token itself, not before it",
        ("gating",),
    ),
    Mutant(
        "gating/roles/roles.py",
        "(drop, 1 - keep, keep * (1 - drop))",
        "(keep, 1 - drop, keep * (1 - drop))",
        "facilitating and interfering heads are swapped",
        ("gating/roles",),
    ),
    Mutant(
        "gating/fit/gates.py",
        "factors = gates.to(z.dtype)[:, None, None, :, None]",
        "factors = gates.to(z.dtype).flip(0)[:, None, None, :, None]",
        "sets of gates reach each other's rows",
        ("gating",),
    ),
    # prompts
    Mutant(
        "prompts/tokens.py",
        "return inside[-1]",
        "return inside[0]",
        "a named position is the first token of its piece",
        ("prompts",),
    ),
    Mutant(
        "prompts/prompts.py",
        'positions, texts = {"last": lengths - 1},',
        'positions, texts = {"last": lengths * 0 + lengths.max() - 1},',
        "the last position of a short prompt is padding",
        ("prompts", "engine/test_sweep.py"),
    ),
    Mutant(
        "prompts/tokens.py",
        "for ids in (self.answer, self.wrong):",
        "for ids in (self.answer,):",
        "prompts with other wrong answers have one fingerprint",
        ("prompts", "ledger"),
    ),
    # ledgers
    Mutant(
        "ledger/sweep_key.py",
        '        "configuration": json.dumps(model.backend.configuration, sort_keys=True, default=str),\n',
        "",
        "a ledger takes a model with another configuration for the same",
        _LEDGER,
    ),
    Mutant(
        "ledger/sweep_key.py",
        '"model": model.provenance() | {"device": arithmetic(model.device)},',
        '"model": model.provenance() | {"device": ""},',
        "a ledger gives the numbers of another kind of device",
        _LEDGER,
    ),
    Mutant(
        "ledger/sweep_key.py",
        '        "made of": model_fingerprint(model.model, what),\n',
        "",
        "a ledger gives the numbers of other weights",
        _LEDGER,
    ),
    Mutant(
        "ledger/sweep_key.py",
        '"prompts": prompts} | marks',
        "} | marks",
        "a ledger gives the numbers of other prompts",
        _LEDGER,
    ),
    Mutant(
        "ledger/ledger.py",
        "if there.fetchone() != row:",
        "if there.fetchone() is None:",
        "a unit with other values is taken for the same",
        _LEDGER,
    ),
)
