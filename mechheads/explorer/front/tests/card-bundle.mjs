/** The modules of the card without a screen, compiled for node. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { build } from "esbuild";

const card = join(dirname(fileURLToPath(import.meta.url)), "../src/card");

/** What a module of `src/card` exports. */
export async function load(name) {
  const { outputFiles } = await build({
    entryPoints: [join(card, name)],
    bundle: true,
    write: false,
    format: "esm",
    platform: "node",
    jsx: "automatic",
    jsxImportSource: "preact",
    logLevel: "error",
  });
  const folder = await mkdtemp(join(tmpdir(), "card-"));
  try {
    const file = join(folder, "module.mjs");
    await writeFile(file, outputFiles[0].text);
    return await import(pathToFileURL(file).href);
  } finally {
    await rm(folder, { recursive: true });
  }
}
