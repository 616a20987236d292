/** Builds ../static/explorer.js and ../static/explorer.css. The same sources and lock file give the same bytes. */
import { readFile, readdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const common = { absWorkingDir: here, bundle: true, minify: true, charset: "ascii", legalComments: "none", logLevel: "warning" };

/** The licences of the libraries in the bundle, as one comment. */
async function licences(inputs) {
  const found = Object.keys(inputs).map((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]);
  const texts = [];
  for (const name of [...new Set(found.filter(Boolean))].sort()) {
    const folder = join(here, "node_modules", name);
    const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
    if (!file) throw new Error(`${name} has no licence file`);
    texts.push(`${name} ${version}\n\n${(await readFile(join(folder, file), "utf8")).trim()}`);
  }
  return `/*! This file holds, besides mechheads:\n\n${texts.join("\n\n").replaceAll("*/", "* /")}\n*/`;
}

const options = {
  ...common,
  entryPoints: ["src/main.tsx"],
  outfile: "../static/explorer.js",
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
};
const { metafile } = await build({ ...options, write: false, metafile: true });
await build({ ...options, banner: { js: await licences(metafile.inputs) } });
await build({ ...common, entryPoints: ["src/styles/main.css"], outfile: "../static/explorer.css", target: ["chrome111", "firefox115", "safari16"] });
