// The site is a plain user of the package: "lora-webgpu" is what `npm run build` left in dist/.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import * as text from "./text.js";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const PAGES = ["layer", "model", "check"]; // in the order of the navigation; `layer` is index.html
const file = (page) => (page === "layer" ? "index.html" : `${page}.html`);
const href = (page, up) => `${up}${page === "docs" ? "docs/quick-start.html" : page === "layer" ? "" : file(page)}`;
const fill = (html) => html.replace(/\{\{(\w+)\.(\w+)\}\}/g, (_, page, name) => {
  const words = text[page]?.[name];
  if (typeof words !== "string") throw new Error(`text.js has no ${page}.${name}`);
  return words;
});

// What the pages have in common, by the element that stands for it; `up` leads to the site's root.
const PARTS = {
  head: ({ page, title, up }) => `<meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <meta name="description" content="{{${page}.description}}">
  <title>${title ?? `{{${page}.title}}`} · {{site.name}}</title>
  <link rel="icon" href="${up || "./"}icon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="${up || "./"}style.css">`,
  header: ({ page, up }) => `<header class="site">
    <a class="skip" href="#main">{{site.skip}}</a>
    <a class="brand" href="${up || "./"}"><img src="${up || "./"}icon.svg" alt="" width="22" height="22">{{site.name}}</a>
    <nav aria-label="{{site.navigation}}">${[...PAGES, "docs"].map((name) =>
      `<a href="${href(name, up) || "./"}"${name === page ? ' aria-current="page"' : ""}>{{site.${name}}}</a>`).join("")}</nav>
    <a class="code" href="{{site.repository}}">{{site.code}}</a>
  </header>`,
  intro: ({ page }) => `<div class="intro">
      <h1>{{${page}.title}}</h1>
      <p class="lede">{{${page}.lede}}</p>
      <p class="device"><span id="device"></span><span id="software" hidden>{{site.software}}</span></p>
    </div>

    <div id="problem" class="notice" role="alert" hidden>
      <p id="problem-text"></p>
      <button id="restart" type="button" hidden>{{site.again}}</button>
      <button id="dismiss" type="button" aria-label="{{site.close}}">×</button>
    </div>

    <section id="missing" class="missing" aria-labelledby="missing-title" hidden>
      <h2 id="missing-title">{{site.needs}}</h2>
      <p id="missing-text"></p>
      <ul>{{site.browsers}}</ul>
      <p>{{site.acceleration}}</p>
    </section>`,
  footer: () => '<footer class="site"><p>{{site.footer}}</p></footer>',
};

/** Puts the common parts and the words into a page. */
const words = {
  name: "words",
  transformIndexHtml: {
    order: "pre",
    handler: (html, { path }) => fill(html.replace(/<site-(\w+)((?: \w+="[^"]*")*)><\/site-\1>/g, (_, part, attributes) =>
      PARTS[part]({ ...Object.fromEntries(Array.from(attributes.matchAll(/(\w+)="([^"]*)"/g), ([, name, value]) => [name, value])), up: "../".repeat(path.split("/").length - 2) }))),
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
