// The site is a plain user of the package: "lora-webgpu" is what `npm run build` left in dist/.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import * as text from "./text.js";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const PAGES = ["layer", "check", "model"]; // in the order of the navigation; `layer` is index.html
const file = (page) => (page === "layer" ? "index.html" : `${page}.html`);
const href = (page, up) => `${up}${page === "docs" ? "docs/quick-start.html" : page === "layer" ? "" : file(page)}`;
const fill = (html) => html.replace(/\{\{(\w+)\.(\w+)\}\}/g, (_, page, name) => {
  const words = text[page]?.[name];
  if (typeof words !== "string") throw new Error(`text.js has no ${page}.${name}`);
  return words;
});

const header = (current, up) => `<header class="site">
    <a class="skip" href="#main">{{site.skip}}</a>
    <a class="brand" href="${up || "./"}"><img src="${up || "./"}icon.svg" alt="" width="22" height="22">{{site.name}}</a>
    <nav aria-label="{{site.navigation}}">${[...PAGES, "docs"].map((page) =>
      `<a href="${href(page, up) || "./"}"${page === current ? ' aria-current="page"' : ""}>{{site.${page}}}</a>`).join("")}<a href="{{site.repository}}">{{site.code}}</a></nav>
  </header>`;
const footer = '<footer class="site"><p>{{site.footer}}</p></footer>';

/** Puts head, foot and words into a page. */
const words = {
  name: "words",
  transformIndexHtml: {
    order: "pre",
    handler: (html, { path }) => fill(html
      .replace(/<site-header page="(\w+)"><\/site-header>/, (_, page) => header(page, "../".repeat(path.split("/").length - 2)))
      .replace("<site-footer></site-footer>", footer)),
  },
};

/** What the language model's page fetches, under the names that it has here. */
const files = {
  name: "files",
  generateBundle() {
    const model = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"].map((name) => `model/${name}`);
    const texts = readdirSync(here("texts")).filter((name) => /\.(txt|jsonl)$/.test(name)).map((name) => `texts/${name}`);
    for (const fileName of [...model, ...texts]) this.emitFile({ type: "asset", fileName, source: readFileSync(here(fileName)) });
  },
};

const documents = existsSync(here("docs")) ? readdirSync(here("docs")).filter((name) => name.endsWith(".html")) : [];

export default {
  root: here("."),
  base: "./", // works under any sub-path
  plugins: [words, files],
  resolve: { alias: { "lora-webgpu": here("../dist/index.js") } },
  server: { fs: { allow: [here("..")] } },
  worker: { format: "es" },
  build: {
    outDir: "dist", emptyOutDir: true, target: "es2022", modulePreload: { polyfill: false },
    assetsInlineLimit: 0, // the page's policy has no data: URLs
    rolldownOptions: { input: [...PAGES.map((page) => here(file(page))), ...documents.map((name) => here(`docs/${name}`))] },
  },
};
