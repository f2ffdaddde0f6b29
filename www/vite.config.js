// The site is a plain user of the package: "lora-webgpu" is what `npm run build` left in dist/.
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

export default {
  root: here("."),
  base: "./", // works under any sub-path
  resolve: { alias: { "lora-webgpu": here("../dist/index.js") } },
  server: { fs: { allow: [here("..")] } },
  worker: { format: "es" },
  build: { outDir: "dist", emptyOutDir: true, target: "es2022", modulePreload: { polyfill: false } },
};
