// Folders of the visitor's by the fingerprint of the model in them, kept as handles in this browser, so that a run can go on with its
// model after the tab was closed.

const asked = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function store(mode, work) {
  const opening = indexedDB.open("lora-webgpu-site", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("folders");
  const database = await asked(opening);
  try {
    return await asked(work(database.transaction("folders", mode).objectStore("folders")));
  } finally {
    database.close();
  }
}

export const keepFolder = (fingerprint, handle) => store("readwrite", (folders) => folders.put(handle, fingerprint)).catch(() => {}); // asked for again, then

/** The folder with that model, if one is known here and the visitor still allows it to be read. */
export async function folderOf(fingerprint) {
  const handle = fingerprint && await store("readonly", (folders) => folders.get(fingerprint)).catch(() => {});
  const permission = await handle?.requestPermission({ mode: "read" }).catch(() => {}); // without a click none may be asked for
  return permission === "granted" ? handle : undefined;
}

/** The files of a folder, not of those in it. */
export async function filesOf(handle) {
  const files = [];
  for await (const entry of handle.values()) if (entry.kind === "file") files.push(await entry.getFile());
  return files;
}
