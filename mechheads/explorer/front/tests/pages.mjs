/** Pages for the browser tests: the same frame, and the same content security policy, as the package writes. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { deflateSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const built = (name) => readFileSync(join(here, "../../static", name), "utf8");
const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
const escaped = (json) => json.replace(/[<>&]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function fixture(name) {
  return JSON.parse(readFileSync(join(here, "fixtures", `${name}.json`), "utf8"));
}

/** `blocks`: what each block holds, by its id. */
export function html({ page, blocks = {} }) {
  const style = built("explorer.css");
  const script = built("explorer.js").replace(/<(?=\/script|!--)/gi, "\\x3c");
  const policy =
    `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data: blob:; connect-src 'none'; ` +
    "base-uri 'none'; form-action 'none'";
  const packed = Object.entries(blocks).map(([id, content]) => {
    const text = typeof content === "string" ? content : deflateSync(JSON.stringify(content)).toString("base64");
    return `<script type="application/octet-stream;base64" id="${id}">${text}</script>`;
  });
  return (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n' +
    `<meta http-equiv="Content-Security-Policy" content="${policy}">\n` +
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n' +
    `<title>Heads</title>\n<style>${style}</style></head>\n` +
    '<body><div id="mh-root" class="mh"><p>The page is being opened.</p></div>\n' +
    `<script type="application/json" id="mh-page">${escaped(JSON.stringify(page))}</script>\n${packed.join("\n")}\n` +
    `<script type="module">${script}</script>\n</body></html>\n`
  );
}
