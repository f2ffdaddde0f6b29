// Built into node_modules, which no repository keeps.
export default { output: "export", distDir: process.env.OUT_DIR, turbopack: { root: import.meta.dirname } };
