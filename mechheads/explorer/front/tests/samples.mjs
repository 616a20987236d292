/** Payloads for the browser tests, made from the small sample: hostile texts, many heads. */
import { fixture } from "./pages.mjs";

export const small = () => fixture("small");

/** Numbers from 0 to 1, the same at every run. */
export function random(seed = 1) {
  let state = seed;
  return () => (state = (state * 16807) % 2147483647) / 2147483647;
}

const nameOf = (head, nHeads) => `L${Math.floor(head / nHeads)}H${head % nHeads}`;

/** A model like another one, of another size: head h is a copy of head `from(h)`, its numbers changed a little. */
function resized(model, nLayers, nHeads, from, name) {
  const next = random(7);
  const heads = Array.from({ length: nLayers * nHeads }, (_, head) => head);
  const of = (values) => heads.map((head) => values[from(head)]);
  const shaken = (value) => (typeof value === "number" && !Number.isInteger(value) ? value * (0.8 + 0.4 * next()) : value);
  const values = (column) => {
    if (column.name === "layer") return heads.map((head) => Math.floor(head / nHeads));
    if (column.name === "head") return heads.map((head) => head % nHeads);
    return of(column.values).map(shaken);
  };
  return {
    ...structuredClone(model),
    name,
    nLayers,
    nHeads,
    nKvHeads: null,
    columns: model.columns.map((column) => ({ ...column, values: values(column) })),
    categories: model.categories && { ...model.categories, of: of(model.categories.of), below: of(model.categories.below), phi: of(model.categories.phi) },
    behaviours: model.behaviours && { ...model.behaviours, of: of(model.behaviours.of) },
  };
}

/** A card as the exporter keeps it in a model of so many heads: with more than 512, one example of each part. */
function fitting(card, n) {
  if (n <= 512 || !card.text) return card;
  return { ...card, text: { ...card.text, parts: card.text.parts.map((part) => ({ ...part, examples: part.examples.slice(0, 1) })) } };
}

function resizedBlocks(blocks, model, { nLayers, nHeads }, from) {
  const cards = Array.from({ length: model.nLayers }, (_, layer) => blocks[`mh-heads-${layer}`].heads).flat();
  const made = { "mh-shared": blocks["mh-shared"] };
  for (let layer = 0; layer < nLayers; layer++) {
    const heads = Array.from({ length: nHeads }, (_, index) => {
      const head = layer * nHeads + index;
      return { ...fitting(cards[from(head)], nLayers * nHeads), head: nameOf(head, nHeads), layer, index };
    });
    made[`mh-heads-${layer}`] = { layer, heads };
  }
  return made;
}

/** One model of `nLayers` layers of `nHeads` heads. */
export function large(nLayers, nHeads, { page, blocks } = small()) {
  const { model } = page;
  const next = random(11);
  const n = model.nLayers * model.nHeads;
  const copied = Array.from({ length: nLayers * nHeads }, () => Math.floor(next() * n));
  const from = (head) => copied[head];
  const made = resized(model, nLayers, nHeads, from, "large");
  return { page: { ...page, title: "A large model", model: made }, blocks: resizedBlocks(blocks, model, made, from) };
}

export const HOSTILE = '<img src=x onerror="document.title=\'broken\'"><script>document.title="broken"</script>\u202e\u0007&amp;\u2066';

/** Hostile texts wherever a text is shown. */
export function hostile() {
  const { page, blocks } = small();
  const { model } = page;
  model.name = `${HOSTILE} name`;
  page.title = HOSTILE;
  for (const each of model.questions) Object.assign(each, { title: HOSTILE, varies: HOSTILE, warnings: [HOSTILE] });
  model.notes = [HOSTILE];
  model.cautions = [HOSTILE];
  model.sources = [{ name: HOSTILE, call: HOSTILE, prompts: HOSTILE, file: HOSTILE }];
  model.citation = HOSTILE;
  for (const column of model.columns) {
    column.label = `${HOSTILE} ${column.name}`;
    column.meaning = HOSTILE;
    if (column.kind === "text") column.values = column.values.map(() => `=1+1${HOSTILE}`);
  }
  if (model.categories) {
    model.categories.names = model.categories.names.map((name) => `${HOSTILE} ${name}`);
    model.categories.relations.forEach((relation) => (relation.name += HOSTILE));
  }
  model.behaviours?.names.forEach((each) => (each.name += HOSTILE));
  const shared = blocks["mh-shared"];
  shared.words = shared.words.map(() => HOSTILE);
  return { page, blocks };
}
